"""`rlobj presets` and `rlobj explain`."""
