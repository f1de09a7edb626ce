"""Worker processes: what may hang, crash or take too much runs there, and is killed."""
