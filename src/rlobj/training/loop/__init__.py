"""A step: the loop around an objective."""
