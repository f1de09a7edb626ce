"""The reward `reward_model`: the number that a sequence classifier gives to a response."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from rlobj.base.batches import by_length
from rlobj.base.digests import model_digest
from rlobj.base.errors import ConfigError, reported
from rlobj.base.paths import located, path_of
from rlobj.base.weights import config_dict, load_complete
from rlobj.data import Problem
from rlobj.rewards.kinds import Graded, Grader, Reward

_PIECES = 32
"""Of a file, at most this many MiB and one count for a digest."""


class RewardModel(Reward):
    """The output of a sequence classifier with one output, for a question and a response.

    If its tokenizer has a chat template, the classifier reads the question as the user's message
    and the response as the assistant's; else the question with the response right behind it. A
    response is undecided if both are longer than the classifier's context. The output does not say
    whether the response is right, unless there is a `threshold`. Code of the model's repository is
    never run.
    """

    model: str
    """folder or hub id of the classifier"""
    threshold: float | None = None
    """a response is right if the output is at least this; null = nothing says what is right"""
    device: str | None = None
    """device of the classifier in every process, such as cuda:1; null = the process's GPU if there
    is one, else cpu. Its weights are bfloat16 on a GPU and float32 on a CPU"""
    batch_tokens: int = Field(default=16384, ge=1)
    """padded tokens per forward pass"""
    digest: str | None = None
    """what a run records of the files of `model`, if that is a folder; others are refused then"""

    def seen_from(self, home: Path) -> Self:
        model = located(self.model, home)
        digest = self.digest or model_digest(path_of(model), pieces=_PIECES)
        return self.model_copy(update={"model": model, "digest": digest})

    def open(self) -> Grader:
        """Return a grader, which loads the classifier when it is entered.

        Raises:
            ConfigError: the model is no sequence classifier with one output, or has no weights.
        """
        return _ModelGrader(self)


class _ModelGrader(Grader):
    batched = True

    def __init__(self, settings: RewardModel) -> None:
        from transformers import AutoConfig, AutoTokenizer

        self._settings, self._model, name = settings, None, settings.model
        # a tokenizer may fail in many ways
        with reported(ConfigError, f"the reward model {name} cannot be read", Exception):
            config_dict(name)
            config = AutoConfig.from_pretrained(name, trust_remote_code=False)
            self._tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        if settings.digest not in (None, model_digest(path_of(name), pieces=_PIECES)):
            raise ConfigError(
                f"{name} is not the reward model with the digest {settings.digest}: it has changed "
                "since. Put the old one back, or start a new run with rewards.digest=null"
            )
        if config.num_labels != 1:
            raise ConfigError(
                f"the reward model {name} has {config.num_labels} outputs (num_labels); "
                "expected a sequence classifier with one"
            )
        text = config.get_text_config()
        self._pads = text.pad_token_id
        most = getattr(text, "max_position_embeddings", None)
        self._limit = min(most or math.inf, self._tokenizer.model_max_length)

    @property
    def says_right(self) -> bool:
        return self._settings.threshold is not None

    def __enter__(self) -> Self:
        import torch
        from transformers import AutoModelForSequenceClassification as Classifier

        name, device = self._settings.model, self._settings.device
        gpu = torch.cuda.is_available()
        device = device or (f"cuda:{torch.cuda.current_device()}" if gpu else "cpu")
        what = f"the reward model {name} cannot be loaded onto {device} (rewards.device)"
        with reported(ConfigError, what, Exception):  # errors of many libraries
            dtype = torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16
            model = load_complete(Classifier, name, dtype=dtype, trust_remote_code=False)
            self._model = model.to(device).eval().requires_grad_(False)
        return self

    def __exit__(self, *_: object) -> None:
        self._model = None

    def score(self, responses: Sequence[str], problems: Sequence[Problem]) -> list[Graded]:
        """Grade each response."""
        rows = [self._ids(*pair) for pair in zip(responses, problems, strict=True)]
        fitting = [row for row in rows if len(row) <= self._limit]
        values = iter(self._computed(fitting))
        return [self._graded(next(values) if len(row) <= self._limit else None) for row in rows]

    def _graded(self, value: float | None) -> Graded:
        threshold = self._settings.threshold
        if value is None:
            reason = f"longer than the reward model's {self._limit} tokens"
            return Graded(math.nan, None, reason, None)
        if not math.isfinite(value):
            return Graded(math.nan, None, "the reward model gives no finite number", None)
        right = None if threshold is None else value >= threshold
        return Graded(value, right, "reward model", None)

    def _ids(self, response: str, problem: Problem) -> list[int]:
        """The token ids that the classifier reads."""
        if not self._tokenizer.chat_template:
            return self._tokenizer(problem.prompt + response)["input_ids"]
        said = {"user": problem.prompt, "assistant": response}
        messages = [{"role": role, "content": text} for role, text in said.items()]
        text = self._tokenizer.apply_chat_template(messages, tokenize=False)
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]

    def _computed(self, rows: Sequence[list[int]]) -> list[float]:
        """The outputs of the classifier in this process."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        model: Any = self._model
        values = [math.nan] * len(rows)
        # without a padding token, one row at a time
        tokens = 1 if self._pads is None else self._settings.batch_tokens
        for batch in by_length([*map(len, rows)], tokens):
            ids = [torch.tensor(rows[i], device=model.device) for i in batch]
            mask = pad_sequence([torch.ones_like(row) for row in ids], True)
            with torch.inference_mode():
                output = model(pad_sequence(ids, True, self._pads or 0), attention_mask=mask)
            for i, value in zip(batch, output.logits[:, 0].float().tolist(), strict=True):
                values[i] = value
        return values
