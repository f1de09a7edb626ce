"""What a run leaves on disk, and in trackers."""
