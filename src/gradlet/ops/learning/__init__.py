"""Losses, optimizers, clipping, and partial updates of a weight."""
