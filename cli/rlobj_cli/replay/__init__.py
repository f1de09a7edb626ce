"""`rlobj replay`."""
