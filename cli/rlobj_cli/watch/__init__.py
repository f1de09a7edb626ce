"""`rlobj watch`."""
