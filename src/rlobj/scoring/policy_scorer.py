"""Scoring with a causal language model: its trunk on all tokens, its head on response tokens."""

import contextlib
import inspect
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rlobj.base.errors import ConfigError, warn
from rlobj.scoring.divergences import Comparison, score_divergence, top_tokens
from rlobj.scoring.packing import Pairs, pack_sequences, pad_sequences, share_prompts
from rlobj.scoring.token_scores import TokenScores, head_of, score_tokens

SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
MULTIPLIERS = ("logit_scale", "lm_head_multiplier")
DIVISORS = ("logits_scaling", "logits_mup_width_multiplier")


@dataclass(frozen=True)
class LogitShape:
    """The logits of a model: softcap·tanh(scale·raw / softcap), or scale·raw."""

    scale: float
    softcap: float | None

    def of(self, raw: Tensor) -> Tensor:
        """The logits from raw ones."""
        scaled = raw * self.scale
        return self.softcap * torch.tanh(scaled / self.softcap) if self.softcap else scaled


def logit_shapes(config: Any) -> list[LogitShape]:
    """The shapes that a config can mean, the most likely first.

    Gemma 2 has a cap, Cohere and Granite have a scale. Granite divides by `logits_scaling`,
    HyperCLOVA X multiplies by it.
    """
    config = config.get_text_config()
    scale, divisor = (
        math.prod(getattr(config, name, None) or 1.0 for name in names)
        for names in (MULTIPLIERS, DIVISORS)
    )
    cap = next((cap for name in SOFTCAPS if (cap := getattr(config, name, None))), None)
    return [LogitShape(scale / divisor, cap), LogitShape(scale * divisor, cap)]


def linear_head(model: Any) -> nn.Linear:
    """The linear layer of a model's head.

    Raises:
        ConfigError: the head is not a linear layer, or an adapter wraps it.
    """
    head = model.get_output_embeddings()
    if getattr(type(head), "forward", None) is nn.Linear.forward:
        return head
    raise ConfigError(
        f"the head of {type(model).__name__} is a {type(head).__name__}; expected a torch linear "
        "layer, without an adapter"
    )


def trunk(model: Any) -> Any:
    """The part of a model that returns its last hidden states."""
    decoder = model.get_decoder()
    if decoder is model or isinstance(decoder, nn.Linear):  # Llama 4, ModernBERT
        return model.model
    return decoder


def depends_on_sequence_length(config: Any) -> bool:
    """Whether a token's output depends on how many tokens follow it in the forward pass.

    It does if the longest position chooses the rotary frequencies.

    Args:
        config: of the transformers model.
    """
    text = config.get_text_config()
    ropes = [getattr(text, name, None) or {} for name in ("rope_parameters", "rope_scaling")]
    ropes += [value for rope in ropes for value in rope.values() if isinstance(value, dict)]
    kinds = {rope.get(key) for rope in ropes for key in ("rope_type", "type")}
    return bool(kinds & {"dynamic", "longrope"})


def depends_on_row(config: Any) -> bool:
    """Whether a token's output depends on its place in a row, or on the row's length."""
    scaled = getattr(config.get_text_config(), "attn_temperature_tuning", False)  # Llama 4
    return bool(scaled) or depends_on_sequence_length(config)


ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}
"""Kinds of layers, as named by transformers, that can treat packed sequences separately."""


class TrunkScorer(nn.Module):
    """A causal model whose trunk runs on all tokens, and a head of a subclass on some of them.

    Trunk and head run in one `forward`, and all parameters take part in it. So DDP can wrap a
    scorer like a model. Build the scorer before the model is wrapped or sharded. `forward` reads
    the head's weight: for a sharded model, the whole weight must be gathered around `forward`, as
    `rlobj.training.parallel` does.

    Args:
        model: of transformers; its layers may have adapters.
        packed: True = `collate` puts all sequences into one row without padding; False = one padded
            row per sequence; "auto" = True with flash attention, else False. Other attention needs
            a mask of the row's length squared.

    Attributes:
        model: the model, unchanged.
        packed: True or False.
        unshareable: why a prompt cannot go through the model once for several responses, in words;
            None if it can. The keys and values of two short prompts are tried.

    Raises:
        ConfigError: the model is not causal; `packed=True`, but packed sequences would affect each
            other (two short ones are tried); or the model has an encoder.
    """

    def __init__(self, model: nn.Module, packed: bool | Literal["auto"] = "auto") -> None:
        super().__init__()
        self.model: Any = model
        if getattr(self.model.config, "is_encoder_decoder", False):
            raise ConfigError(f"{type(model).__name__} has an encoder; expected a causal model")
        self.packed = packed is True or (packed == "auto" and _flash(self.model))
        unpackable, self.unshareable = self._try_trunk()
        if unpackable and packed is True:
            raise ConfigError(f"{type(model).__name__} cannot score packed sequences: {unpackable}")
        if unpackable and self.packed:
            warn("Sequences are padded, not packed: %s.", unpackable)
            self.packed = False

    def predicting(self, *inputs: Any) -> tuple[Tensor, Tensor]:
        """The hidden states that predict the tokens in the response mask, [N, H], and these, [N].

        Args:
            *inputs: those of `PolicyScorer.forward`, which `collate` makes.
        """
        input_ids, attention_mask, response_mask, *rest = inputs
        position_ids, prompts, prompt_mask, owners = (*rest, *[None] * 4)[:4]
        if prompts is None or owners is None:
            hidden = self._trunk(input_ids, attention_mask, position_ids)[:, :-1]
            input_ids, response_mask = input_ids[:, 1:], response_mask[:, 1:]
        else:
            hidden = self._after_prompts(input_ids[:, :-1], prompts, prompt_mask, owners)
        predicted = response_mask.bool()
        return hidden[predicted], input_ids[predicted]

    def collate(
        self, sequences: Pairs, device: torch.device | str = "cpu", shared: bool = False
    ) -> tuple[Tensor | None, ...]:
        """The inputs of `forward` for some sequences, packed, padded, or with shared prompts.

        There is no attention mask: with one, attention takes a slower kernel and each layer keeps
        a mask of a row's length for every token.

        Args:
            sequences: pairs of prompt and response token ids.
            device: the device of the inputs.
            shared: each different prompt goes through the model once; the scorer must not be
                `unshareable`.

        Raises:
            BatchError: a response has no prompt.
        """
        if shared:
            return share_prompts(sequences, device)
        pad_or_pack = pack_sequences if self.packed else pad_sequences
        input_ids, _, *rest = pad_or_pack(sequences, device)
        return input_ids, None, *rest

    def _trunk(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None = None,
        cache: Any = None,
    ) -> Tensor:
        inputs: dict[str, Any] = {"attention_mask": attention_mask, "position_ids": position_ids}
        decoder = trunk(self.model)
        if cache is not None:
            inputs[cache_argument(decoder)] = cache
        inputs = {name: value for name, value in inputs.items() if value is not None}
        return decoder(input_ids=input_ids, use_cache=cache is not None, **inputs)[0]

    def _after_prompts(
        self, input_ids: Tensor, prompts: Tensor, prompt_mask: Tensor | None, owners: Tensor
    ) -> Tensor:
        """The hidden states that predict the tokens of responses, [B, R, H].

        The first one is that of the prompt's last token. The others come from a second pass of the
        trunk, whose rows read the keys and values of their prompts, with gradient.

        Args:
            input_ids: of responses without their last token, [B, R − 1].
            prompts: padded on the left, [P, S].
            prompt_mask: 1 at their tokens, [P, S]; None if there is no padding.
            owners: the number of each row's prompt, int [B].
        """
        from transformers import DynamicCache

        cache = DynamicCache()
        mask = positions = following = None
        if prompt_mask is not None:
            positions = (prompt_mask.cumsum(1) - 1).clamp(min=0)
            columns = torch.arange(input_ids.shape[1], device=input_ids.device)
            following = (positions[:, -1:] + 1)[owners] + columns
            mask = torch.cat([prompt_mask[owners], torch.ones_like(input_ids)], 1)
        first = self._trunk(prompts, prompt_mask, positions, cache)[:, -1]
        if cache.get_seq_length() != prompts.shape[1]:
            raise ConfigError(
                f"{type(self.model).__name__} kept no keys and values: set shared_prompts=False"
            )
        cache.batch_select_indices(owners)
        rest = self._trunk(input_ids, mask, following, cache)
        return torch.cat([first[owners, None], rest], 1)

    @torch.no_grad()
    def _try_trunk(self) -> tuple[str | None, str | None]:
        """Why sequences cannot be packed or share prompts, in words.

        The model reads four tokens, in a row of their own and in each other way.
        """
        weight, half = next(self.model.parameters()), contextlib.nullcontext()
        rows = torch.tensor([[0, 1, 1, 0], [0, 1, 1, 1]], device=weight.device)
        if _flash(self.model) and weight.dtype == torch.float32:  # which it does not support
            half = torch.autocast(weight.device.type, torch.bfloat16)
        with evaluating(self.model), half:
            hidden, other = self._trunk(rows, None)
            if bool(hidden.isfinite().all()) and _difference(other[:-1], hidden[:-1]):
                name = type(self.model).__name__
                raise ConfigError(f"{name} is not causal; it reads later tokens")
            self._try_head(rows[:1], hidden[-1])
            unpackable = self._unpackable(rows[0], hidden) if self.packed else None
            return unpackable, self._unshareable(hidden)

    def _try_head(self, row: Tensor, hidden: Tensor) -> None:
        """Check the head on the last hidden state of a row, [H]."""

    def _stateful(self) -> str | None:
        """Which layers keep a state in place of keys and values, in words."""
        kinds = {*(getattr(self.model.config.get_text_config(), "layer_types", None) or ())}
        others = sorted(kinds - ATTENTION) or ["recurrent"] * getattr(self.model, "_is_stateful", 0)
        return f"layers of the kind {', '.join(others)} have a state" if others else None

    def _unpackable(self, row: Tensor, hidden: Tensor) -> str | None:
        """Why packed sequences have other scores than single ones; None if they have the same."""
        if stateful := self._stateful():
            return stateful
        if "position_ids" not in inspect.signature(trunk(self.model).forward).parameters:
            return "its trunk takes no position_ids"
        sequences = [(row[:3].tolist(), ()), (row.tolist(), ())]
        input_ids, _, _, position_ids = pack_sequences(sequences, row.device)
        packed = self._trunk(input_ids, None, position_ids)[0]
        return _difference(packed, torch.cat([hidden[:3], hidden]))

    def _unshareable(self, hidden: Tensor) -> str | None:
        """Why responses cannot read the keys and values of a prompt that went through alone."""
        if stateful := self._stateful():
            return stateful
        if depends_on_row(self.model.config):
            return "its output depends on a token's place in the row"
        parameters = inspect.signature(trunk(self.model).forward).parameters
        if missing := {"position_ids", cache_argument(trunk(self.model))} - parameters.keys():
            return f"its trunk takes no {' and no '.join(sorted(missing))}"
        sequences = [((0, 1), (1, 0)), ((0,), (1, 1, 0))]
        inputs: tuple[Any, ...] = share_prompts(sequences, hidden.device)
        try:
            shared = self._after_prompts(inputs[0][:, :-1], *inputs[4:])
        except Exception as error:  # XLM refuses a mask, for one
            return f"two short prompts ended with {type(error).__name__}: {error}"
        together = torch.cat([shared[0, :2], shared[1]])
        return _difference(together, torch.cat([hidden[1:3], hidden[:3]]))


class PolicyScorer(TrunkScorer):
    """A causal language model that returns `TokenScores` instead of logits.

    Args:
        model: a transformers causal language model whose head is a linear layer on the last hidden
            states; other layers may have adapters.
        packed: as in `TrunkScorer`.

    Attributes:
        shape: of the model's logits.

    Raises:
        ConfigError: as `TrunkScorer`; the head is not supported, or the model's logits for two
            tokens differ from those that scoring computes.
    """

    shape: LogitShape

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        response_mask: Tensor,
        position_ids: Tensor | None = None,
        prompts: Tensor | None = None,
        prompt_mask: Tensor | None = None,
        owners: Tensor | None = None,
        *,
        hidden_states: bool = False,
        top: tuple[int, int] | None = None,
        teachers: Mapping[str, Comparison] | None = None,
        **settings: Any,
    ) -> TokenScores:
        """Score the tokens in `response_mask`, row after row.

        Logits are computed only for these tokens, tile by tile. `pad_sequences`, `pack_sequences`
        and `share_prompts` make the inputs. Padding is on the right, so the model's own positions
        are correct; only prompts of their own are padded on the left.

        Args:
            input_ids: [B, T].
            attention_mask: 1 at real tokens, [B, T]; None if all tokens are real, or if padding is
                on the right and attention is causal, so that no real token reads it.
            response_mask: True at the tokens to score, [B, T]; never at a sequence's first token.
            position_ids: the position of each token in its sequence, [B, T]; None for padded ones.
            prompts: prompts that rows share, [P, S]; the rows are then responses without prompts.
            prompt_mask: 1 at the tokens of these prompts, [P, S]; None if there is no padding.
            owners: the number of each row's prompt, int [B].
            hidden_states: also return the hidden states.
            top: also return the k most likely of the first V tokens: (k, V).
            teachers: also compute divergences from teachers, by name; one that has `outside` needs
                `entropy`.
            **settings: settings of `score_tokens`: temperature, entropy, min_p, collision,
                sensitivity, chunk_bytes.

        Returns:
            TokenScores with one row for each True in `response_mask`.
        """
        hidden, targets = self.predicting(
            input_ids, attention_mask, response_mask, position_ids, prompts, prompt_mask, owners
        )
        layer, shape = self.model.get_output_embeddings(), vars(self.shape)
        scores = score_tokens(hidden, layer.weight, targets, bias=layer.bias, **shape, **settings)
        if not (hidden_states or top or teachers):
            return scores
        head = head_of(hidden, layer.weight, settings.get("temperature", 1.0), **shape)
        more: dict[str, Any] = {"hidden": hidden} if hidden_states else {}
        if top is not None:
            likely = top_tokens(hidden, head(layer.weight, layer.bias), *top)
            more |= {"top_ids": likely.ids, "top_logprobs": likely.logprobs}
        parameters = layer.weight, layer.bias
        divergences = {
            name: score_divergence(*comparison, hidden, head, parameters, targets, scores)
            for name, comparison in (teachers or {}).items()
        }
        return replace(scores, **more, divergences=divergences or None)

    def _try_head(self, row: Tensor, hidden: Tensor) -> None:
        head = linear_head(self.model)
        logits = self.model(input_ids=row, use_cache=False).logits[0, -1].float()
        if not bool(logits.isfinite().all()):
            raise ConfigError(f"the logits of {type(self.model).__name__} are not finite")
        raw = head(hidden.to(head.weight.dtype)).float()
        self.shape = self._matching(raw, logits, tolerance(head.weight))

    def _matching(self, raw: Tensor, logits: Tensor, share: float) -> LogitShape:
        """The shape in which raw logits are the model's, but for a share of the largest one."""
        for shape in logit_shapes(self.model.config):
            if (shape.of(raw) - logits).abs().max() <= share * logits.abs().max():
                return shape
        name = type(self.model).__name__
        raise ConfigError(f"{name} computes its logits in a way that scoring does not know")


def cache_argument(module: Any) -> str:
    """What a module of transformers calls its cache; newer versions have renamed it."""
    accepted = inspect.signature(module.forward).parameters
    return "cache" if "cache" in accepted else "past_key_values"


def _flash(model: Any) -> bool:
    """Whether the model uses flash attention, which supports packed rows."""
    name = getattr(model.config.get_text_config(), "_attn_implementation", None) or ""
    return "flash" in name


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch to eval mode, and return each submodule to its previous mode afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _difference(hidden: Tensor, expected: Tensor) -> str | None:
    """How hidden states differ from those that tokens have alone; None if only by rounding."""
    error = float((hidden - expected).abs().max())
    if error <= tolerance(expected) * float(expected.abs().max()):
        return None
    return f"a token's hidden states differ by {error:.3g} from those it has alone"


def tolerance(tensor: Tensor) -> float:
    """The share of its largest value by which a tensor may differ if it is computed otherwise."""
    return 1e-4 if tensor.dtype in (torch.float32, torch.float64) else 2e-2


def score_samples(
    model: nn.Module, sequences: Pairs, *, shared_prompts: bool = False, **settings: Any
) -> TokenScores:
    """Score every response token of some sequences in one batch.

    Args:
        model: a `PolicyScorer`, wrapped or not, or a causal language model. In a loop, pass a
            scorer: building one runs the model on two tokens.
        sequences: pairs of prompt and response token ids. Use `micro_batches` to limit the number
            of tokens. An empty response has no rows.
        shared_prompts: each different prompt goes through the model once, and its responses read
            its keys and values; the scores are equal up to rounding.
        **settings: settings of `score_tokens`: temperature, entropy, min_p, collision,
            sensitivity, chunk_bytes.

    Returns:
        TokenScores of all response tokens, response after response.

    Raises:
        BatchError: a response has no prompt.
        ConfigError: the model is not supported, or a setting is out of range.
    """
    scorer = PolicyScorer(model) if hasattr(model, "get_output_embeddings") else model
    inner = next((part for part in scorer.modules() if isinstance(part, PolicyScorer)), None)
    if inner is None:
        raise ConfigError(f"{type(model).__name__} is no causal model; wrap PolicyScorer(model)")
    if shared_prompts and inner.unshareable:
        raise ConfigError(f"set shared_prompts=False, because {inner.unshareable}")
    device = next(scorer.parameters()).device
    return scorer(*inner.collate(sequences, device, shared_prompts), **settings)
