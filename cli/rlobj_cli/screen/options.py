"""Options that several commands have, what they set, and a group with a command without a name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN", help="Folders of runs, finished or not.")
]
PresetOrFile = Annotated[
    str, typer.Argument(metavar="PRESET_OR_FILE", help="Name of a preset, or a YAML file.")
]
Evaluation = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of an evaluation.")]
Step = Annotated[int | None, typer.Option(metavar="N", min=1, help="Only this step.")]
Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON, for other programs.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Import the code that a run or an evaluation names.")
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="FOLDER|FILE|ID",
        help="Causal language model: a folder, a GGUF file, a hub id, or embedded: a tiny policy "
        "for the built-in tasks and for problems of digits and + - * , = only.",
    ),
]
Preset = Annotated[
    str | None,
    typer.Option("--preset", "-p", metavar="NAME|FILE", help="Objective: see rlobj presets list."),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="YAML file with settings above those of the preset. It can name preset, model and "
        "data itself.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="One setting by its dotted name, above everything else, such as training.steps=50. "
        "Repeatable.",
    ),
]
Reward = Annotated[
    str | None,
    typer.Option(
        metavar="KIND|FILE.py:NAME",
        help="What grades a response: math, math_verify, exact, or your function "
        "f(response, answer, **columns), such as my_rewards.py:score.",
    ),
]
Environment = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE.py:CLASS",
        help="Who answers the policy: calculator, your class with reset(problem) and "
        "step(messages), or verifiers:NAME. It grades unless --reward does.",
    ),
]
Tools = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="What the policy may call, separated by commas: python, calculator, or your "
        "function, such as my_tools.py:look_up, with type hints and a docstring. Needs a model "
        "with a chat template.",
    ),
]
Sampler = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Engine that samples responses: transformers, vllm (in this process), or vllm-server "
        "(see rlobj serve).",
    ),
]
Seed = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Of sampling and data. Default: 0.")
]
Processes = Annotated[
    int | None,
    typer.Option(metavar="K", min=1, help="Processes on this machine, one per GPU if it has any."),
]
Strategy = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="How processes share the policy: ddp, zero2, zero3, fsdp2."),
]
Place = Annotated[
    str | None, typer.Option("--screen", hidden=True, help="Where the process that began shows it.")
]
StopOn = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FINDING",
        help="Save and stop with exit code 1 when the diagnosis finds this, such as collapse. "
        "Repeatable; see rlobj diagnose.",
    ),
]


SETTINGS = {
    "model": "model.name",
    "data": "data.source",
    "reward": "rewards",
    "environment": "environment.target",
    "tools": "environment.tools",
    "sampler": "sampling.engine",
    "seed": "seed",
    "strategy": "training.strategy",
    "stop_on": "training.stop_on",
    "samples": "evaluation.samples",
    "limit": "data.limit",
    "temperature": "evaluation.temperature",
    "top_p": "evaluation.top_p",
    "max_tokens": "sampling.max_tokens",
}
"""The setting of each option that stands for one."""


def setting_layers(options: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The options that stand for settings, as layers with their names, and above them `--set`.

    Args:
        options: all of a command by name, given or not: `typer.Context.params`.
    """
    from rlobj.conversations.settings import named_tools
    from rlobj.settings.layers import nested, parse_setting, reward_settings

    read = {"reward": reward_settings, "tools": named_tools, "stop_on": list}
    layers = [
        (f"--{name.replace('_', '-')}", nested(path, read.get(name, lambda x: x)(options[name])))
        for name, path in SETTINGS.items()
        if options.get(name) not in (None, (), [])
    ]
    return [*layers, *(("--set", parse_setting(text)) for text in options["settings"] or ())]


class DefaultGroup(TyperGroup):
    """A group with one command without a name: `rlobj eval MODEL` and `rlobj eval compare A B`."""

    DEFAULT = "<model>"
    """The internal name of the command without a name; it cannot be a model."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Pass arguments that do not begin with a command's name to the command without one."""
        if not args:
            args = [self.DEFAULT, "--help"]
        elif args[0] not in self.commands:
            args = [self.DEFAULT, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Leave the internal name out of usage lines."""
        name, command, rest = super().resolve_command(ctx, args)
        return "" if name == self.DEFAULT else name, command, rest


class _NamelessContext(typer.Context):
    """The context of a command without a name."""

    @property
    def command_path(self) -> str:
        """The path as the user types it, without a blank at the end."""
        return super().command_path.rstrip()


class NamelessCommand(TyperCommand):
    """The class of the command without a name."""

    context_class = _NamelessContext
