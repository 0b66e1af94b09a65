"""What every room may use: files and caches, compilers, progress, interruptions, the terminal."""
