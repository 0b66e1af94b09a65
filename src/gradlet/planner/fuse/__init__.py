"""Fusions: which nodes one call computes together, and by which launches. One file per rule; the
list of them is in rules.py."""
