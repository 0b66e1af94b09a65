"""The command line: one command per verb; how every failure ends."""

from gradlet.cli.commands import main

__all__ = ["main"]
