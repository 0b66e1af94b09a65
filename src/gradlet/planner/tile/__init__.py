"""Tilings: the search for tile sizes, what they cost, and the tables that the runtime walks."""
