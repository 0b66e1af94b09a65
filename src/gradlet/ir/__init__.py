"""The values that stages hand on: tensors, nodes and graphs, element types, and the recipe of a
training."""
