"""Elements and rows by index: lookups, sorting, running sums."""
