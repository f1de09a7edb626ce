"""Rollouts: sampling, grading, storage on disk, and division over the ranks."""
