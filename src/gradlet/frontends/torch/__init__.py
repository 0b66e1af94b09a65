"""PyTorch modules: export, checks, and the walk over the exported program."""
