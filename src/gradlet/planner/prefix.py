"""What the C names and the files of a project may begin with: nothing that is there already."""

from __future__ import annotations

import re

from gradlet.errors import GradletError

LONGEST = 40
OWN_FILES = """
    main weights golden kernels link manifest plan steps start team makefile readme cmakelists t
"""
"""Files of a project; and `T_x`, which is what a network's source calls a tensor."""
KEYWORDS = """
    alignas alignof and asm auto bool break case catch char class const constexpr continue default
    delete do double else enum explicit export extern false float for friend goto if inline int long
    mutable namespace new not nullptr operator or private protected public register restrict return
    short signed sizeof static struct switch template this throw true try typedef typeid typename
    typeof union unsigned using virtual void volatile while xor null eof i
"""
HEADERS = """
    assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign
    stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar
    unistd wchar wctype alloca malloc memory pthread sched strings features
"""
"""Of the C library: a file `math.h` beside the others would be found instead."""
LIBRARY = "atomic int uint mem str wcs is to pthread sig lc prn"
"""With a `_` behind, C and POSIX keep such names for themselves."""


def check_prefix(prefix: str) -> None:
    """Raise if the C of a project could not begin its names and files with it."""
    lower = prefix.lower()
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", prefix, re.ASCII):
        reason = "cannot begin a C name: a letter, then letters, digits and _"
    elif len(prefix) > LONGEST:
        reason = f"has {len(prefix)} letters; {LONGEST} are possible"
    elif lower == "gl" or lower.startswith("gl_"):
        reason = "is what the names of the runtime begin with"
    elif lower in OWN_FILES.split() or lower.startswith("golden_"):
        reason = "is what a file or name that every project has is called"
    elif lower in KEYWORDS.split():
        reason = "is a word of C or C++"
    elif lower in (HEADERS + LIBRARY).split():
        reason = "belongs to the C library"
    else:
        return
    raise GradletError(f"--prefix {prefix[:LONGEST]}: it {reason}; take another, such as net")
