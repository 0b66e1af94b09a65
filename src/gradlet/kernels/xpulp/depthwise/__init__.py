"""Depthwise convolutions with 3 x 3 taps."""
