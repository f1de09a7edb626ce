"""`rlobj inspect`."""
