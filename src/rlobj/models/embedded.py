"""The embedded policy: a tiny Qwen3 that rlobj trains on when no model is named.

    embedded_policy(task) -> model folder in the user's cache, made on first use

`rlobj.settings.profiles` holds the settings that fit a run to it. Its tokenizer has one token per
character, and its model the Qwen3 architecture at 83,648 or 108,160 parameters.

It is trained with supervision before reinforcement learning, which leaves something to learn. For
`addition`, the targets are smoothed: the correct digit has probability 1 − smoothing, each other
digit smoothing / 9, so that the policy ranks the correct digit first but many of its samples are
wrong. For scratchpads, the responses have noise: a digit is replaced by another one, or a letter
precedes a character, and the response goes on from the right numbers. The policy imitates that. Its
training is short and ends at the full learning rate, so that many of its answers are wrong. For
calculators, most first turns are wrong guesses: the policy rarely asks, and can use what it is
told.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import random
import re
import string
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from platformdirs import user_cache_path
from torch import Tensor
from torch.nn import functional
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rlobj.base.errors import ConfigError, RunError, nearest
from rlobj.data.problems import digest
from rlobj.data.scratchpad import MARK
from rlobj.data.tasks import TASKS
from rlobj.models.loading import no_bars

logger = logging.getLogger(__name__)

__all__ = ["RECIPES", "WarmStart", "build_policy", "build_tokenizer", "embedded_policy"]


ALPHABET = "0123456789+-*,= "
"""Every character that the policies of `addition` and `max-digits` read and write."""

SCRATCHPAD_ALPHABET = ALPHABET + ";#" + string.ascii_lowercase
"""The characters of the policies of scratchpads; the letters mean nothing."""

CALCULATOR_ALPHABET = SCRATCHPAD_ALPHABET + "?"
"""The characters of the policies of calculators; an observation may be `error;`."""

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
"""Token ids 0 to 3; the characters follow."""


def build_tokenizer(alphabet: str = ALPHABET) -> PreTrainedTokenizerFast:
    """Build a transformers tokenizer with one token for each character of an alphabet.

    It adds no special tokens and pads on the left. Another character becomes `<unk>`.

    Args:
        alphabet: the characters; all ten digits in a row are among them.

    Example:
        >>> tokenizer = build_tokenizer()
        >>> tokenizer.decode(tokenizer("3+4=").input_ids)
        '3+4='
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    tokens = {token: index for index, token in enumerate((*SPECIAL, *alphabet))}
    characters = Tokenizer(models.WordLevel(tokens, unk_token="<unk>"))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    characters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=characters,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=128,
    )


def build_policy(
    seed: int, alphabet: str = ALPHABET, layers: int = 2, width: int = 128
) -> Qwen3ForCausalLM:
    """Build a policy with random float32 weights, without changing the global random state.

    Args:
        seed: of the weights.
        alphabet: that of its tokenizer.
        layers: number of layers.
        width: of the MLPs.
    """
    config = Qwen3Config(
        vocab_size=len(SPECIAL) + len(alphabet),
        hidden_size=64,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=width,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        pad_token_id=SPECIAL.index("<pad>"),
        bos_token_id=SPECIAL.index("<bos>"),
        eos_token_id=SPECIAL.index("<eos>"),
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)


Progress = Callable[[int, int, float], None]
"""Called with (steps done, number of steps, loss in nats per answer token)."""


@dataclass(frozen=True)
class WarmStart:
    """The settings of the supervised training."""

    steps: int
    """Optimizer steps; 0 leaves the weights random."""
    batch_size: int = 64
    """Answers per step, sampled with replacement."""
    learning_rate: float = 5e-3
    """Peak learning rate of AdamW: 10 steps of warm-up, then a cosine to `final` of it."""
    final: float = 0.05
    """Share of the peak learning rate at the end; 1 = constant after the warm-up."""
    smoothing: float = 0.4
    """Probability of all wrong digits together in the targets."""
    wrong_digits: float = 0.0
    """Probability that a digit of a response is replaced by another one."""
    stray_letters: float = 0.0
    """Probability that a letter is put before a character of a response."""
    guesses: float = 0.0
    """Probability that the first turn of a conversation is a guess in place of a call. The later
    turns, which copy what was told, are trained either way. 0: responses are one turn."""
    alphabet: str = ALPHABET
    """The characters of the policy."""
    layers: int = 2
    """Number of the policy's layers."""
    width: int = 128
    """Width of the policy's MLPs."""


_SCRATCHPAD = WarmStart(
    steps=700,
    learning_rate=2e-3,
    final=1.0,
    smoothing=0.0,
    wrong_digits=0.03,
    stray_letters=0.004,
    alphabet=SCRATCHPAD_ALPHABET,
    layers=3,
    width=96,
)
_CALCULATOR = WarmStart(
    steps=500,
    batch_size=32,
    learning_rate=2e-3,
    smoothing=0.0,
    guesses=0.7,
    alphabet=CALCULATOR_ALPHABET,
    layers=3,
    width=96,
)
RECIPES = {
    **dict.fromkeys(("scratchpad", "scratchpad-3", "scratchpad-5"), _SCRATCHPAD),
    "calculator": _CALCULATOR,
    "calculator-sum": dataclasses.replace(_CALCULATOR, steps=400, batch_size=16),
    "addition": WarmStart(steps=600),
    "max-digits": WarmStart(steps=0),
}
"""The supervised training of each task that has an embedded policy."""


def warm_start(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[tuple[str, str]],
    recipe: WarmStart,
    *,
    seed: int,
    progress: Progress | None = None,
) -> None:
    """Minimise −Σ_k q_k log π_k over response tokens, where q are the smoothed targets.

    Trains `model` in place on the CPU, on one thread whatever torch's setting is: the same seed and
    versions give the same weights to the bit. The global random state is not read.

    Args:
        model: a causal LM.
        tokenizer: one token a character; the ten digits in a row.
        pairs: (prompt, right response); the EOS token follows, which is not smoothed.
        recipe: the settings.
        seed: of the order of the pairs and of the noise.
        progress: called after each step.
    """
    smoothed = _smoothed(tokenizer, model.config.vocab_size, recipe.smoothing)
    generator, noise = torch.Generator().manual_seed(seed), random.Random(seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    model.train()
    with _one_thread():
        for step in range(recipe.steps):
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate * _schedule(step, recipe)
            rows = torch.randint(len(pairs), (recipe.batch_size,), generator=generator).tolist()
            drawn: list[Sequence[str]] = []
            for prompt, response in (pairs[row] for row in rows):
                drawn += _drawn(prompt, response, recipe, noise)
            tokens, target = _table(tokenizer, drawn)
            logits = model(input_ids=tokens, use_cache=False).logits
            loss = functional.cross_entropy(logits[target >= 0], smoothed[target[target >= 0]])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if progress is not None:
                progress(step + 1, recipe.steps, loss.item())
    model.eval()


def _drawn(
    prompt: str, response: str, recipe: WarmStart, draw: random.Random
) -> list[Sequence[str]]:
    """What is trained on of a demonstration: texts that are read and written, in turn.

    A conversation is call, observation, call and so on, each up to a semicolon, then the answer.
    """
    if not recipe.guesses:
        return [(prompt, _noisy(response, recipe, draw))]
    texts = [prompt, *re.split("(?<=;)", response)]
    if draw.random() >= recipe.guesses:
        return [texts]
    guess = "".join(draw.choices(string.digits, k=len(texts[-1]) - len(MARK)))
    return [(prompt, MARK + guess), ("".join(texts[:3]), *texts[3:])]


def _noisy(response: str, recipe: WarmStart, draw: random.Random) -> str:
    """The response with wrong digits and stray letters."""
    noisy = ""
    for character in response:
        if draw.random() < recipe.stray_letters:
            noisy += draw.choice(string.ascii_lowercase)
        if character.isdigit() and draw.random() < recipe.wrong_digits:
            character = draw.choice(string.digits.replace(character, ""))
        noisy += character
    return noisy


def _table(
    tokenizer: PreTrainedTokenizerBase, drawn: Sequence[Sequence[str]]
) -> tuple[Tensor, Tensor]:
    """Tokens [P, T], and the token to be written after each of them [P, T]; −1 = none."""
    ids = tokenizer.get_vocab()
    rows, following = [], []
    for texts in drawn:
        tokens = [ids[character] for text in texts for character in text]
        written = [k % 2 for k, text in enumerate(texts) for _ in text]
        target = [token if write else -1 for token, write in zip(tokens, written, strict=True)]
        rows.append(torch.tensor(tokens))
        following.append(torch.tensor([*target[1:], tokenizer.eos_token_id]))
    pad = torch.nn.utils.rnn.pad_sequence  # padding on the right, which no token attends to
    return pad(rows, True), pad(following, True, -1.0)


def _smoothed(tokenizer: PreTrainedTokenizerBase, vocabulary: int, smoothing: float) -> Tensor:
    """[V, V]; row y is the target distribution if the correct token is y."""
    digits = torch.tensor(tokenizer("0123456789").input_ids)
    targets = torch.eye(vocabulary)
    targets[digits[:, None], digits] = smoothing / 9
    targets[digits, digits] = 1 - smoothing
    return targets


def _schedule(step: int, recipe: WarmStart) -> float:
    """The learning rate, relative to its peak."""
    cosine = 0.5 * (1 + math.cos(math.pi * step / recipe.steps))
    return min(1.0, (step + 1) / 10) * max(recipe.final, cosine)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def embedded_policy(
    task: str,
    *,
    seed: int = 0,
    cache_dir: Path | str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Return the Hugging Face model folder, with tokenizer, of the policy for a built-in task.

    The first call trains the policy, which takes seconds; later calls return at once. The folder's
    name contains a hash of everything that changes the weights: recipe, problems, seed, the code,
    versions of torch and transformers, and the vector width of the CPU. Several processes may call
    this at the same time: each trains, and the first complete folder is used.

    Args:
        task: name of a task in `RECIPES`.
        seed: of the random weights and of the training.
        cache_dir: folder for policies; default: `rlobj` in the user's cache folder.
        progress: called with (steps done, number of steps, loss) during the training.

    Raises:
        ConfigError: no embedded policy for this task.
        RunError: the folder cannot be written.
    """
    if task not in RECIPES:
        raise ConfigError(f"there is no embedded policy for '{task}'.{nearest(task, RECIPES)}")
    recipe, pairs = RECIPES[task], TASKS[task].demonstrations()
    root = user_cache_path("rlobj", appauthor=False) if cache_dir is None else Path(cache_dir)
    folder = root / f"{task}-{_key(recipe, pairs, seed)}"
    if folder.is_dir():  # it appears when it is complete
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".warm-start-", dir=root) as scratch:
            made = Path(scratch) / "policy"
            tokenizer = build_tokenizer(recipe.alphabet)
            model = build_policy(seed, recipe.alphabet, recipe.layers, recipe.width)
            warm_start(model, tokenizer, pairs, recipe, seed=seed, progress=progress)
            with no_bars():
                model.save_pretrained(made)
            tokenizer.save_pretrained(made)
            _publish(made, folder)
    except OSError as error:
        raise RunError(
            f"cannot write the embedded policy to {root}: {error}. Choose a writable folder, "
            "for example XDG_CACHE_HOME=/tmp/cache in the environment."
        ) from error
    logger.info("the embedded policy for %s is in %s", task, folder)
    return folder


def _key(recipe: WarmStart, pairs: list[tuple[str, str]], seed: int) -> str:
    """16 hexadecimal digits of a hash of everything that changes the weights."""
    code = Path(__file__).read_text("utf-8")
    facts = {
        "recipe": dataclasses.asdict(recipe),
        "problems": pairs,
        "seed": seed,
        "code": code,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
    return digest(json.dumps(facts, sort_keys=True))[:16]


def _publish(made: Path, folder: Path) -> None:
    """Move a finished folder to its final path, unless another process was first."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
