"""ONNX files: reading, rewriting, the walk over their nodes, and what they do in training."""
