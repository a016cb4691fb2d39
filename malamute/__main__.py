"""`python -m malamute` is the command `malamute`."""

from malamute.cli import main

if __name__ == "__main__":
    main()
