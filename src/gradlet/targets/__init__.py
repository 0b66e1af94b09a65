"""Devices: one TOML each, and what the other rooms ask of them."""
