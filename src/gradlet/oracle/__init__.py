"""What a graph has to compute: the numpy interpreter, allowed errors, the record of the user's own
module."""
