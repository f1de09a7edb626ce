"""Checks of conversations: tools are not called or of no use, or turns run out."""

from __future__ import annotations

from rlobj.insight.diagnosis.check import Found, reads
from rlobj.insight.diagnosis.checks.policy import SOLVED
from rlobj.insight.diagnosis.checks.responses import CUT_RIGHT, TRUNCATED
from rlobj.insight.diagnosis.history import WINDOW, History


@reads("tools/calls", also=["turns/mean", "reward/accuracy", "reward/mean"])
def tool_never_called(history: History) -> Found | None:
    """No response calls a tool, or none does so any more."""
    calls, turns = history.mean("tools/calls"), history.mean("turns/mean")
    before, accuracy = history.total("tools/calls"), history.mean("reward/accuracy")
    environment = history.config.environment
    # with neither target nor tools, another trainer has tools
    offered = environment.tools or environment.target in (None, "calculator")
    if len(history.steps) < WINDOW or calls != 0 or not (before or offered) or accuracy >= SOLVED:
        return None
    numbers = {"calls": before, "turns": turns}
    if before:
        return Found(
            f"no response calls a tool any more, after {before:,.0f} calls ({history.level})",
            "Read earlier responses with calls in samples/: see whether the answers were of use, "
            "and what a failed call or a limit costs (environment.at_limit). A kl penalty or a "
            "lower training.learning_rate slows the loss.",
            numbers,
            slower=True,
        )
    return Found(
        f"no response has called a tool: {turns:.3g} turns on average ({history.level})",
        "Read a response in samples/. A call that the parser does not recognise counts as an "
        "answer: see environment.calls. If there is none, show one in data.template, or start from "
        "a model that calls tools.",
        numbers,
    )


FAILED, FEW_CALLS = 0.5, 20
"""Share of calls that fail, and the smallest number of calls in five steps. A policy that learns to
call makes mistakes at first, so this counts later."""
FEW_CALLERS = 100
"""Responses of five steps with calls, and without, whose accuracies are compared: the standard
error of the difference is at most 0.07."""


@reads(
    "tools/errors",
    "tools/accuracy_with",
    also=[
        "tools/calls",
        "tools/timeouts",
        "tools/accuracy_without",
        "tools/used_share",
        "response/count",
    ],
)
def called_in_vain(history: History) -> Found | None:
    """Most calls fail, or responses with calls are not right more often than those without."""
    if len(history.steps) < 2 * WINDOW:
        return None
    names = ("tools/calls", "tools/errors", "tools/timeouts")
    calls, errors, timeouts = (sum(history.last(name)) for name in names)
    if calls >= FEW_CALLS and errors >= FAILED * calls:
        return Found(
            f"{errors:,.0f} of {calls:,.0f} calls failed in the last steps, {timeouts:,.0f} of "
            "them at the time limit",
            "Read in samples/ what the policy was answered. tools/exceptions are your tool's, see "
            "environment.deadline for time limits, and data.template for how a call is written.",
            {"calls": calls, "errors": errors, "timeouts": timeouts},
        )
    called, without = history.mean("tools/accuracy_with"), history.mean("tools/accuracy_without")
    share = history.mean("tools/used_share")
    fewer = min(share, 1 - share) * sum(history.last("response/count"))
    if not (called <= without and fewer >= FEW_CALLERS):
        return None
    return Found(
        f"responses that call a tool have the accuracy {called:.3f}, those that do not "
        f"{without:.3f} ({share:.0%} call one)",
        "Compare both on one problem: the policy may call on hard problems only. Read in samples/, "
        "column conversation, whether it uses the answers.",
        {"with": called, "without": without, "share": share},
    )


@reads(
    "turns/at_turns",
    also=["turns/at_tokens", "turns/at_errors", "turns/mean", "response/truncated_right"],
)
def turn_limit_reached(history: History) -> Found | None:
    """Many conversations end at a limit of turns, tokens or failed calls, and are not right."""
    shares = {name: history.mean(f"turns/at_{name}") for name in ("turns", "tokens", "errors")}
    limit, right = (
        max(shares, key=lambda name: shares[name]),
        history.mean("response/truncated_right"),
    )
    if len(history.steps) < 3 or not shares[limit] >= TRUNCATED or right >= CUT_RIGHT:
        return None
    environment, tokens = history.config.environment, history.config.sampling.max_tokens
    ended = f"{shares[limit]:.0%} of the conversations end"
    mean = history.mean("turns/mean")
    if limit == "turns":
        evidence = f"{ended} at {environment.max_turns} turns ({mean:.3g} on average)"
        cure = (
            f"Raise environment.max_turns={2 * environment.max_turns}; or pay less for such "
            "responses with environment.at_limit."
        )
    elif limit == "tokens":
        evidence = (
            f"{ended} because they have {tokens} tokens, or fill sampling.context ({mean:.3g} "
            "turns on average)"
        )
        cure = (
            f"Raise sampling.max_tokens={2 * tokens} or sampling.context; or lower "
            "environment.max_output."
        )
    else:
        evidence = f"{ended} because more than {environment.max_errors or 0} calls failed"
        cure = (
            "Raise environment.max_errors; read in samples/, column conversation, why calls fail."
        )
    return Found(evidence, cure, {"share": shares[limit], "mean": mean})
