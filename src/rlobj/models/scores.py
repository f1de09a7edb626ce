"""The models of scores that are not made from the policy; they read the token ids of the policy."""

from collections.abc import Sequence
from typing import Any

import torch

from rlobj.base.errors import ConfigError, Message, Setting, reported, warn
from rlobj.base.interleaved import Interleaved
from rlobj.models.loading import load_model, load_tokenizer, loading
from rlobj.models.score_sources import score_folder
from rlobj.models.values import value_class
from rlobj.settings.run_config import ModelConfig
from rlobj.settings.scores import ScoreConfig, ValueConfig


def load_score(
    name: str,
    score: ScoreConfig | ValueConfig,
    config: ModelConfig,
    tokenizer: Any,
    *,
    device: Any = "cpu",
    hollow: bool = False,
) -> Any:
    """The model of a score that is another one than the policy, whose settings and tokenizer these
    are; `device` and `hollow` are those of `load_model`.

    Raises:
        ConfigError: it cannot be loaded, is not what it was when the run began, or reads other
            tokens than the policy.
    """
    source = score_folder(name, score)
    setting = f"scores.{name}.{'run' if score.run else 'model'}"
    with reported(ConfigError, setting, ConfigError):
        theirs = load_tokenizer(config, source)
    of_value = isinstance(score, ValueConfig)  # which predicts no token, and so no end
    end = tokenizer.eos_token_id if of_value else score.end
    if difference := tokenizer_difference(tokenizer, theirs, end, name):
        raise ConfigError(f"scores.{name}: ", difference)
    with reported(ConfigError, setting, ConfigError), loading(source):
        dtype = score_dtype(score)
        kind = value_class(source) if of_value else None
        if of_value and kind is None:
            warn("%s: '%s' has no head of a token classifier; a new one is trained", name, source)
        return load_model(config, source, device=device, dtype=dtype, hollow=hollow, kind=kind)


def tokenizer_difference(ours: Any, theirs: Any, end: int | None, name: str) -> str | None:
    """Describe why a teacher cannot read the policy's token ids; None if it can.

    Each id of the policy must have the same text in the teacher's vocabulary. Further ids of the
    teacher do not matter, because the policy never draws them. Neither does the size of the heads,
    which is often padded.

    Args:
        ours: the policy's tokenizer, of transformers.
        theirs: the teacher's tokenizer.
        end: the teacher's token that stands for the policy's end token; None = the same token.
        name: of the score.

    Returns:
        The first id that differs with both texts, or the setting to change.
    """
    here = {index: text for text, index in ours.get_vocab().items()}
    there = {index: text for text, index in theirs.get_vocab().items()}
    for index in sorted(here):
        if here[index] != there.get(index):
            texts = f"{here[index]!r} in the policy's tokenizer and {there.get(index)!r} in"
            return f"id {index} is {texts} that of {name}"
    our_end, other = ours.eos_token_id, theirs.eos_token_id
    if end is None and our_end != other:
        what = (
            f"the policy ends a response with id {our_end}, and the teacher with id {other}: use "
        )
        return Message(what, Setting(f"scores.{name}.end", other))
    if end is not None and end not in there:
        return f"scores.{name}.end={end} is no token of the teacher; it ends with id {other}"
    return None


def with_end(response: Sequence[int], ours: int | None, end: int | None) -> Sequence[int]:
    """Return response ids with the teacher's end token in place of the policy's.

    Args:
        response: token ids that the policy drew.
        ours: the policy's end token.
        end: the teacher's; None = the response stays as it is.
    """
    if end is None:
        return response
    tokens = [end if token == ours else token for token in response]
    return Interleaved(tokens, response.gaps) if isinstance(response, Interleaved) else tokens


def score_dtype(score: ScoreConfig | ValueConfig) -> torch.dtype:
    """The dtype of the weights of a frozen model; the reference has the policy's, float32."""
    usual = torch.cuda.is_available() and not score.required
    half = score.dtype == "bfloat16" or (score.dtype == "auto" and usual)
    return torch.bfloat16 if half else torch.float32


def frozen(model: Any, score: ScoreConfig, device: Any) -> Any:
    """The model of a score on its device, with weights in its dtype, never trained.

    Buffers keep their dtype: in bfloat16, rotary frequencies would turn late tokens wrongly.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to(device, score_dtype(score))
    return model.to(device).eval().requires_grad_(False)
