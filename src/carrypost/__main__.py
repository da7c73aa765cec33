"""``python -m carrypost``: the command `carrypost`, also where it is not on the path."""

from carrypost.cli import main

if __name__ == "__main__":
    main()
