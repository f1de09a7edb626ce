"""The configuration of a run: presets, layers, and RunConfig."""
