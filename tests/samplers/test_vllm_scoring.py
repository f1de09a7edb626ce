"""Log-probs of given tokens from vLLM's own server, which is no `rlobj serve`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from benchmarks.embedded_policy import build_tokenizer
from runs import metrics
from served import plain_server
from tiny import save_tiny_policy, tiny_config
from vllm_tools import NEEDS_VLLM, TOLERANCE, save_policy

from rlobj.base.errors import ConfigError, RunError
from rlobj.models.embedded import ALPHABET, SCRATCHPAD_ALPHABET
from rlobj.runs.tables import read_tables
from rlobj.samplers.vllm.auth import KEY_VARIABLE
from rlobj.samplers.vllm.connection import Connection, ServerGone
from rlobj.samplers.vllm.scoring import ServerScorer
from rlobj.scoring import score_samples
from rlobj.training import run_training

POSITIONS = 128
REAL = [
    *(pytest.mark.vllm, pytest.mark.slow, pytest.mark.skipif(**NEEDS_VLLM)),
    pytest.mark.usefixtures("plain"),
]


def real(test: Any) -> Any:
    for mark in REAL:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_policy(tmp_path_factory.mktemp("teacher") / "model", tied=True, positions=POSITIONS)


@pytest.fixture(scope="module")
def plain(model):
    """vLLM's server as its users start it; it splits prompts into parts, and keeps prefixes."""
    words = ["--max-num-batched-tokens=32", "--max-num-seqs=16", "--enable-prefix-caching"]
    with plain_server(model.config.name_or_path, *words) as server:
        yield server


@pytest.fixture
def scorer(plain, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, "plain")
    monkeypatch.setattr("rlobj.samplers.vllm.connection._HEARTBEAT", 0.05)
    return ServerScorer(plain[1], name="teacher", temperature=1.0, timeout=20, patience=2)


def random_sequences(count: int) -> list[tuple[list[int], list[int]]]:
    """Half of them begin with the same 40 tokens; the last one is as long as possible."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda low, high, size: torch.randint(low, high, (size,), generator=generator).tolist()  # noqa: E731
    shared, found = draw(0, 20, 40), []
    for index in range(count):
        (size,) = draw(2, POSITIONS, 1) if index < count - 1 else (POSITIONS - 1,)
        ids = (shared[: 40 * (index % 2)] + draw(0, 20, POSITIONS))[:size]
        (cut,) = draw(1, size, 1)
        found.append((ids[:cut], ids[cut:]))
    return found


@real
def test_logprobs_of_a_plain_server_equal_those_of_transformers(scorer, model):
    sequences = [([5], []), *random_sequences(40)]
    with torch.no_grad():
        expected = score_samples(model, sequences[1:]).logprobs
    for _ in range(2):  # the second time, prefixes are cached
        found = scorer.logprobs(sequences)
        assert [len(values) for values in found] == [len(response) for _, response in sequences]
        flat = torch.tensor([value for values in found for value in values])
        assert float((flat - expected).abs().max()) < TOLERANCE


@real
def test_the_most_likely_tokens_of_a_plain_server_are_those_of_transformers(scorer, model):
    sequences = random_sequences(12)
    scores = scorer.score(sequences, top=4)
    rows = []
    for prompt, response in sequences:
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *response]])).logits[0]
        rows.append(logits[len(prompt) - 1 : -1])
    expected = torch.cat(rows).log_softmax(-1).topk(4)
    assert torch.equal(torch.tensor([score.ids for score in scores]), expected.indices)
    logprobs = torch.tensor([score.logprobs for score in scores])
    assert float((logprobs - expected.values).abs().max()) < TOLERANCE


@real
@pytest.mark.parametrize(
    ("sequence", "part"),
    [
        (([5], [5] * POSITIONS), "maximum context length is 128 tokens"),
        (([5], [6, 99]), "Token id 99 is out of vocabulary"),
    ],
)
def test_a_sequence_that_the_server_cannot_score_is_refused(scorer, sequence, part):
    with pytest.raises(ConfigError, match=part):
        scorer.logprobs([([5], [6]), sequence])
    assert scorer.logprobs([([5], [6])])[0][0] < 0


@real
@pytest.mark.parametrize("alphabet", [ALPHABET.replace("89", "98"), SCRATCHPAD_ALPHABET])
def test_the_servers_tokenizer_is_compared_with_the_policys(scorer, alphabet):
    scorer.check(build_tokenizer())
    with pytest.raises(ConfigError, match=r"scores\.teacher: .* has another tokenizer"):
        scorer.check(build_tokenizer(alphabet))
    other = build_tokenizer()
    other.eos_token = "<unk>"
    with pytest.raises(ConfigError, match=r"id 3 \('<unk>'\), as the policy does.*teacher\.end"):
        scorer.check(other)
    scorer.check(other, end=2)


@real
def test_a_run_learns_from_a_teacher_behind_a_server(plain, model, monkeypatch, tmp_path):
    monkeypatch.setenv(KEY_VARIABLE, "plain")
    own = {"model": {"name": str(save_tiny_policy(tmp_path / "policy", seed=3))}}
    own |= {"scores": {"teacher": {"server": plain[1]}}, "objective": {"shape": "teacher_gap"}}
    own |= {"output": {"tables_every": 1}}
    run_training(
        tiny_config(tmp_path / "policy", "grpo", training={"steps": 2}, **own), tmp_path / "run"
    )
    [update] = read_tables(tmp_path / "run", [2])
    with torch.no_grad():
        expected = score_samples(model, update.sequences).logprobs
    found = update.table.columns["teacher_logprob"]
    assert float((found - expected).abs().max()) < TOLERANCE
    refused = {**own, "objective": {"shape": "teacher_entropy"}}
    with pytest.raises(
        ConfigError, match="over the whole vocabulary, and a server gives some tokens"
    ):
        run_training(tiny_config(tmp_path / "policy", "grpo", **refused), tmp_path / "other")


@real
def test_a_run_distils_the_most_likely_tokens_of_a_server_as_of_its_model(
    plain, model, monkeypatch, tmp_path
):
    monkeypatch.setenv(KEY_VARIABLE, "plain")
    folder = save_tiny_policy(tmp_path / "policy", seed=3)
    penalty = {"kind": "divergence", "against": "teacher", "of": "forward", "top": 5}
    losses = []
    for teacher in ({"server": plain[1]}, {"model": model.config.name_or_path}):
        settings = {
            "model": {"name": str(folder)},
            "scores": {"teacher": teacher},
            "objective": {"shape": 0, "penalties": [penalty]},
        }
        run = tmp_path / str(len(losses))
        run_training(tiny_config(folder, "grpo", training={"steps": 2}, **settings), run)
        losses.append([line["loss/divergence_teacher"] for line in metrics(run)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][0] > 0


# Answers that a server of ours does not give.


def test_a_rollout_at_another_temperature_is_refused_before_the_server_is_asked():
    with pytest.raises(ConfigError, match=r"scores\.sage\.model.*sampling\.temperature=1"):
        ServerScorer("http://127.0.0.1:1", name="sage", temperature=0.7)


def answering(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> ServerScorer:
    """A scorer that gets these answers to completions; an error is raised, a text is a model."""
    pytest.importorskip("aiohttp")
    left, model = list(answers), "good"

    async def send(self: Any, session: Any, request: Any, timeout: Any) -> Any:
        nonlocal model
        if request[1] == "/v1/models":
            return {"data": [{"id": "policy", "root": model, "max_model_len": POSITIONS}]}
        while isinstance(left[0], str):
            model = left.pop(0)
        if isinstance(left[0], Exception):
            raise left.pop(0)
        return {"choices": [{"prompt_logprobs": left.pop(0)}]}

    monkeypatch.setattr(Connection, "_send", send)
    return ServerScorer("http://teacher:1", name="sage", temperature=1.0, patience=1)


def entries(*values: float | None, tokens: Sequence[int] = (6, 7)) -> list[Any]:
    """What vLLM says of the prompt [5] and the response [6, 7]."""
    pairs = zip(tokens, values, strict=True)
    return [None, *({str(token): {"logprob": value, "rank": 1}} for token, value in pairs)]


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        (entries(-1.0, math.nan), "token 7 the log-prob nan"),
        (entries(-9999.0, None), "token 6 the log-prob -9999"),
        (entries(-1.0, -1.0, tokens=(6, 8)), "token 7 the log-prob None"),
        (entries(-1.0, tokens=[6]), "token 7 the log-prob None"),
        (None, "token 6 the log-prob None"),
        (entries(17.5, -1.0), "token 6 the log-prob 17.5.*logprobs_mode"),
    ],
    ids=["nan", "infinite", "another-token", "too-few", "none", "logits"],
)
def test_a_log_prob_that_is_none_is_an_error_with_the_score_and_the_server(
    monkeypatch, answer, part
):
    scorer = answering(monkeypatch, answer)
    with pytest.raises(RunError, match=rf"scores\.sage: .*http://teacher:1.*{part}"):
        scorer.logprobs([([5], [6, 7])])


def ranked(*rows: tuple[int, Any, Any]) -> list[Any]:
    """What a server says of the prompt [5] and the response [6]: ids, log-probs and ranks."""
    return [None, {str(key): {"logprob": value, "rank": rank} for key, value, rank in rows}]


HALF = math.log(0.5)


@pytest.mark.parametrize(
    "answer",
    [
        ranked((6, 0.0, 1), (7, 5.0, 2)),
        ranked((6, -0.1, 1), (7, -0.2, 2)),
        ranked((6, -0.5, 1), (7, math.nan, 2)),
    ],
)
def test_most_likely_tokens_that_no_distribution_has_are_refused(monkeypatch, answer):
    scorer = answering(monkeypatch, answer)
    with pytest.raises(RunError, match=r"scores\.sage: .*http://teacher:1 gives impossible"):
        scorer.score([([5], [6])], top=2)


@pytest.mark.parametrize(
    ("rows", "ids"),
    [
        (((6, -3.0, 9), (7, -0.5, 1), (8, -1.5, 2)), [7, 8]),
        (((6, HALF, 1), (7, HALF, 1), (8, -99, 2)), [6, 7]),
        (((6, -0.5, 1),), [6]),
    ],
)
def test_the_scored_token_may_be_outside_of_the_most_likely_ones_or_tie_with_one(
    monkeypatch, rows, ids
):
    [score] = answering(monkeypatch, ranked(*rows)).score([([5], [6])], top=2)
    assert score.ids == ids
    assert score.logprob == rows[0][1]


def test_scoring_goes_on_when_the_server_is_back(monkeypatch):
    scorer = answering(monkeypatch, ServerGone("gone"), entries(-0.5, -0.25))
    assert scorer.logprobs([([5], [6, 7])]) == [[-0.5, -0.25]]


def test_a_server_that_is_back_with_another_model_is_not_read(monkeypatch):
    scorer = answering(monkeypatch, "other", ServerGone("gone"), entries(-0.5, -0.25))
    with pytest.raises(RunError, match=r"scores\.sage: .*teacher:1 serves other, and before good"):
        scorer.logprobs([([5], [6, 7])])
