"""Recurrent layers: products with the state, and gates."""
