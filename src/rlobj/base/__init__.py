"""Code that does not depend on reinforcement learning: errors, validation, YAML, importing."""
