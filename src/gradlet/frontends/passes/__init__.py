"""Passes over forward graphs: one spelling for equal things, data layout, batch norms, guards."""
