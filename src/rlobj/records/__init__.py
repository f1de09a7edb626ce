"""The record of a run: what its updates did to every token."""
