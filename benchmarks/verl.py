"""rlobj inside verl's training worker: the same gradient as rlobj alone, and what it costs.

verl's own worker runs under Ray on the CPU, with gloo and FSDP2, in one process and in two. It gets
rollouts of random tokens: nothing is sampled; with sampling, the shares are smaller. `gradient` is
the largest difference of a gradient from that of rlobj alone, over all updates on a rollout and
relative to the gradient's largest entry; rlobj alone scores each response by itself and plans the
whole update in one table. A step is verl's pass for the old log-probs and all updates on the
rollout, in CPU seconds of the first process. The parts that rlobj adds are the plan, with
advantages and controllers, and the forward pass without gradient that rules on the present policy
need from the second update on. `updates` is their number per rollout, `micro-batch` the responses
of each process in it.

It needs the environment that .ci/verl makes:

    .venv-verl/bin/python -m benchmarks.verl
"""

from __future__ import annotations

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Table, main, note

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "verl_plugin")]

PRESETS = ("dapo-loss", "stapo", "20-entropy", "stare")
RESPONSES, VOCABULARY, LONGEST = 32, 2048, 128
"""Of a rollout; of the policy; the longest response, in tokens."""


def save_policy(folder: Path) -> Path:
    """A policy of 3 million parameters with distributions that differ from token to token."""
    import torch
    from tiny import save_tiny_policy
    from transformers import Qwen3Config, Qwen3ForCausalLM

    save_tiny_policy(folder)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    config = Qwen3Config(vocab_size=VOCABULARY, tie_word_embeddings=True, **sizes)
    model: Any = Qwen3ForCausalLM(config)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(4)
    model.save_pretrained(folder)
    return folder


def timed_worker() -> type:
    """The tests' worker, which also measures the CPU seconds of its parts."""
    from harness import ObservedWorker
    from verl.single_controller.base.decorator import Dispatch, register

    class TimedWorker(ObservedWorker):
        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def watch(self) -> str:
            """Measure the parts, too."""
            self.seconds: Any = Counter()
            parts = {"infer_batch": "step", "train_mini_batch": "step", "_scores": "forward"}
            for name, part in {**parts, "_plan": "plan", "_observe": "plan"}.items():
                setattr(self.actor, name, self._timed(getattr(self.actor, name), part))
            return super().watch()

        def _timed(self, method: Callable[..., Any], part: str) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                start = time.process_time()
                result = method(*args, **kwargs)
                self.seconds[part] += time.process_time() - start
                return result

            return run

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def spent(self) -> dict[str, float]:
            """CPU seconds of each part since the last call; the plan without its forward pass."""
            found = {**self.seconds, "plan": self.seconds["plan"] - self.seconds["forward"]}
            self.seconds.clear()
            return found

    return TimedWorker


def measure(quick: bool, rounds: int) -> Table:
    """Every preset, number of updates, micro-batch size and number of processes."""
    import ray
    from alone import difference, gradients
    from harness import rollout, run_config, start
    from test_gradients import shares

    from rlobj import load_preset

    presets, rows = PRESETS[1:3] if quick else PRESETS, []
    with tempfile.TemporaryDirectory() as folder:
        policy = save_policy(Path(folder))
        for processes in (1, 2):
            workers = start(run_config(policy), processes, timed_worker())
            plain = rollout(1, VOCABULARY, LONGEST)
            for preset in presets:
                for updates in (1, 4):
                    size = RESPONSES // updates
                    sent = {"mini_batch_size": size, "global_batch_size": size, "epochs": 1}
                    wanted = None
                    most = size // processes
                    for micro in (most, 1) if quick else sorted({most, 4, 1}, reverse=True):
                        note(f"{preset}, {updates} updates, micro {micro}, {processes} processes")
                        seconds: Any = Counter()
                        for _ in range(rounds):
                            workers.group.begin(preset)
                            workers.group.spent()
                            data = workers.score(plain)
                            workers.update(data, **sent, micro_batch_size_per_gpu=micro)
                            seconds += Counter(workers.group.spent()[0])
                        given = (load_preset(preset).objective, data, shares(processes, updates))
                        wanted = wanted or gradients(policy, *given)
                        pairs = zip(workers.gradients(), wanted, strict=True)
                        rows.append(
                            {
                                "preset": preset,
                                "updates": updates,
                                "micro_batch": micro,
                                "processes": processes,
                                "difference": max(difference(*pair) for pair in pairs),
                                "seconds": seconds["step"] / rounds,
                                "plan": seconds["plan"] / seconds["step"],
                                "forward": seconds["forward"] / seconds["step"],
                            }
                        )
            workers.stop()
    ray.shutdown()
    return Table(
        "verl",
        {
            "preset": ("preset", ""),
            "updates": ("updates", "d"),
            "micro_batch": ("micro-batch", "d"),
            "processes": ("processes", "d"),
            "difference": ("gradient", ".1e"),
            "seconds": ("CPU s a step", ".3g"),
            "plan": ("plan", ".1%"),
            "forward": ("extra forward", ".1%"),
        },
        rows,
        {"responses": RESPONSES, "longest": LONGEST, "vocabulary": VOCABULARY, "rounds": rounds},
        labels=("preset", "updates", "micro_batch", "processes"),
        bars=("plan", "forward"),
    )


if __name__ == "__main__":
    main(measure)
