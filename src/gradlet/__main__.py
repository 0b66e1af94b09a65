"""`python -m gradlet` is the command `gradlet`."""

from gradlet.cli import main

if __name__ == "__main__":
    main()
