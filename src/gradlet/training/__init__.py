"""From a forward graph to a training graph: losses, reverse-mode differentiation, optimizers,
partial updates."""
