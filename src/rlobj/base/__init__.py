"""What knows nothing of reinforcement learning: errors, validation, YAML, names of code."""
