"""The user's ONNX file as a module of PyTorch: an oracle that shares nothing with capture.

Each operator is written in PyTorch a second time (`elements`, `moves`, `layers`, `recurrent`), and
the whole is held against ONNX's own evaluator in float64 (`agreement`).
"""
