"""`rlobj estimate`: the memory and hours of a run, from the model's config.json."""

from typing import Annotated

import typer

from rlobj.base.targets import without_imports
from rlobj.reporting.terminal import Screen, importing
from rlobj_cli.screen.options import Config, Model, Preset, Settings


@without_imports()
def estimate(
    model: Model,
    gpus: Annotated[
        str | None,
        typer.Option(
            metavar="KxGB",
            help="Number of GPUs and the memory of each in GB, or their name: 8x80, 80, 8xH200, "
            "A100, L40S, 4090; or cpu, for the memory alone. Default: those of this machine.",
        ),
    ] = None,
    preset: Preset = None,
    config: Config = None,
    settings: Settings = None,
) -> None:
    """Show the memory and hours that a run on GPUs needs, before anything is loaded.

    The model may be a folder with nothing but a config.json. Settings that are left open, such as
    the strategy and the micro-batch, are chosen so that the run fits. If it cannot, changes are
    shown with which it can, and the exit code is 2. The preset is grpo if nothing names one.

    [bold]Examples[/bold]

    \b  rlobj estimate --model Qwen/Qwen3-8B-Base --gpus 8x80 --preset stapo
      rlobj estimate --model Qwen/Qwen3-1.7B-Base --gpus A100 --set sampling.max_tokens=4096
      rlobj estimate --model ./Qwen3-8B-Base --gpus 8x80 --set model.lora.rank=16
    """
    with importing("torch"):
        from rlobj.models.location import require_model
        from rlobj.settings.building import build_config
        from rlobj.settings.layers import file_layer, layers_of, origins, parse_setting

    layers = [file_layer(config)] if config is not None else []
    layers.append(("--model", {"model": {"name": model}}))
    layers += [("--set", parse_setting(text)) for text in settings or []]
    named = any({"objective", "preset"} & {*layer} for _, layer in layers)
    layers = layers_of(preset or (None if named else "grpo"), layers)
    if "data.source" not in origins(layers):
        layers.insert(0, ("any problems", {"data": {"source": "addition"}}))
    built = build_config(layers)
    if built.model.name is not None:
        require_model(built.model.name)
    with importing("transformers"):
        from rlobj_cli.screen.estimating import estimate_of, show_estimate, show_ways
    estimated = estimate_of(built, gpus)
    show_estimate(Screen(), estimated)
    show_ways(Screen(), estimated)
    if not estimated.memory.fits:
        raise typer.Exit(2)
