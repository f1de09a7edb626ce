"""`rlobj diagnose`."""
