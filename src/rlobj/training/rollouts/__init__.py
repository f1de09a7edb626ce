"""Rollouts: sampled, graded, kept on disk, and dealt out over ranks."""
