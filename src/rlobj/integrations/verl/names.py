"""Names that the plugin and the training worker share."""

LOSS_MODE = "rlobj"
"""verl's `loss_mode` that asks for an objective of rlobj."""
PADDING = "rlobj_padding"
"""The field with the uids of synthetic responses, joined by commas."""
INDEX = "rlobj_index"
"""The field with each response's index in its session; absent if all sessions have one response."""
