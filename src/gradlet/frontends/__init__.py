"""From what the user has, a PyTorch module, an ONNX or a TOML file, to a forward graph."""
