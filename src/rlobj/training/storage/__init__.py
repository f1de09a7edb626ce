"""Checkpoints, sample tables and trackers of a run."""
