"""`rlobj doctor`."""
