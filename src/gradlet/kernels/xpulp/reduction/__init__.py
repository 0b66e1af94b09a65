"""Sums, softmax, normalisation, pooling: many elements to few."""
