"""Tables and messages for a terminal, in which text of the user's is never taken for markup."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text


def console(*, stderr: bool = False) -> Console:
    return Console(stderr=stderr, emoji=False, highlight=False)


def plain(*cells: str) -> list[Text]:
    """Cells of a table as they are: `[bold]` and `:-1` in a name are no markup."""
    return [Text(printable(cell)) for cell in cells]


def printable(text: str) -> str:
    """What every terminal can be sent: bytes in a file's name that are no UTF-8 are spelt out."""
    return text.encode("utf-8", "backslashreplace").decode()
