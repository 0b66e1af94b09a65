"""How much stack the cores of a linked program need: an upper bound, found in its machine code.

Every function is walked along its jumps, with the distance of sp from where it was on entry; what
it calls is added. A call through a pointer may reach every function whose address is taken, in the
code or in a table; one that is marked (gl_call() in gl.h) only assembler that calls nothing.
Recursion, and stack that grows in a loop, have no bound: StackError.

Needs nothing but Python, since every project for a device has a copy: `make device` runs it.
"""

from .bound import GUARD, needs_of, reserved_for, stack_need
from .program import Program, StackError, loaded_bytes

__all__ = [
    "GUARD",
    "Program",
    "StackError",
    "loaded_bytes",
    "needs_of",
    "reserved_for",
    "stack_need",
]
