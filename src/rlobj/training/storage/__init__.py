"""Files of a run, checkpoints and trackers."""
