"""`python -m stack_use golden.elf`: whether what is reserved is enough."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from . import Program, StackError, reserved_for, stack_need


def main(path: Path) -> int:
    try:
        data = path.read_bytes()
        needed, reserved = reserved_for(stack_need(data)), Program(data).address("gl_stack")
    except (StackError, OSError, struct.error) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 1
    if needed > reserved:
        text = f"{path}: each core needs {needed} bytes of stack, and {reserved} are reserved"
        print(f"{text}; build the project again with this compiler", file=sys.stderr)
        return 1
    print(f"{path}: needs {needed} of the {reserved} bytes of stack of each core")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
