"""Compares a run with what was expected, and what is shipped with what was run."""
