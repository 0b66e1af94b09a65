"""Generated assembler for the PULP cluster (RI5CY with Xpulpv2): one module per kernel family.

A variant with `generator = "NAME"` calls `generate(mode, epilogue, params)` of the module here of
that name; it returns further values for the variant's template, such as whole functions.
"""
