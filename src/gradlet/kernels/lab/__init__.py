"""Kernels measured on the simulated cluster: every variant that fits, checked and ranked."""

from .cases import LAYOUTS, STEPS, Case, conv2d, gemm, linear
from .measure import ALIGNMENTS, Report, Row, measure

__all__ = [
    "ALIGNMENTS",
    "LAYOUTS",
    "STEPS",
    "Case",
    "Report",
    "Row",
    "conv2d",
    "gemm",
    "linear",
    "measure",
]
