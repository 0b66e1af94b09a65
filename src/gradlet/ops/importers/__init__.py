"""How the front ends spell what ops of ours compute; one file per group of layers or functions."""
