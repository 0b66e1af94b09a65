"""Fusions: which nodes one call computes together, one file per rule."""
