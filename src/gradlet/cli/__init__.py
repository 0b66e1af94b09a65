"""The command line: one command per verb; how every failure ends."""
