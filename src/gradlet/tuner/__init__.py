"""Finds the fastest tiles and kernels by measuring candidates on the simulator."""
