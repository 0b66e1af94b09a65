"""Kernels: the catalogue, the families in C, the generators for Xpulp, and the laboratory."""
