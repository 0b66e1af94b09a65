"""Which tensors share storage, which memory each lies in, and its address there."""
