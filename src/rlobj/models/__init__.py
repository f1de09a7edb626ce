"""Policies: loading a causal language model, its adapters, and the embedded default."""
