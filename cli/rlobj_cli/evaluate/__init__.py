"""`rlobj eval`."""
