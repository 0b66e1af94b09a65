"""Functions of one or two elements, optimizer steps, losses of single elements."""
