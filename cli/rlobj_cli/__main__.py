"""`python -m rlobj_cli` is `rlobj`."""

from rlobj_cli.app import main

if __name__ == "__main__":
    main()
