"""`rlobj train`."""
