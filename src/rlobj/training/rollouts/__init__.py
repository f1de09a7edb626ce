"""Rollouts: sampling, grading, sample tables, and division over the ranks."""
