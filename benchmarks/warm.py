"""What every run imports; the process that starts the runs has it loaded."""

import transformers.models.qwen3.modeling_qwen3  # noqa: F401

import rlobj.training.loop.running  # noqa: F401
