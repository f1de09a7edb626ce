"""Names that the plugin and the training worker share."""

LOSS_MODE = "rlobj"
"""verl's `loss_mode` that asks for an objective of rlobj."""
PADDING = "rlobj_padding"
"""The field with the uids of synthetic responses, joined by commas."""
