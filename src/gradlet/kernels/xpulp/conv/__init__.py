"""Convolutions: direct, by im2col packing, pointwise, strided."""
