"""The instruction set: an assembler writer, arithmetic in few instructions, stores of register
blocks."""
