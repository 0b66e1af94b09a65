"""Recurrent layers as one kernel call per time step."""
