"""`rlobj report`."""
