"""`python -m tabmoco` is the command `tabmoco`."""

from tabmoco.cli import main

if __name__ == "__main__":
    main()
