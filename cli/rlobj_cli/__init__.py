"""The command line of rlobj: `rlobj --help`, or `python -m rlobj_cli --help`."""
