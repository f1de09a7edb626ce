"""`rlobj serve`: a vLLM server that trainers sample from and push weights to."""

from __future__ import annotations

import math
import signal
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from rlobj.samplers.vllm import Server

__all__ = ["serve"]


def serve(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model folder, a hub id, or: embedded.")
    ],
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="ADDRESS", help="Address to listen on; 0.0.0.0: on all of them."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=1, max=65535, metavar="N", help="Port to listen on.")
    ] = 8000,
    dtype: Annotated[
        str,
        typer.Option(
            "--dtype",
            metavar="NAME",
            help="float32, bfloat16 or float16; auto: float32 on a CPU, else bfloat16.",
        ),
    ] = "auto",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="KEY=VALUE", help="An engine argument of vLLM; repeatable."
        ),
    ] = None,
) -> None:
    """Start a vLLM server for rlobj train --sampler vllm-server.

    Every request needs a key: RLOBJ_API_KEY of the environment, or one that is made here and kept
    in a file that only you can read. Ctrl-C stops the server and all its processes.

    [bold]Examples[/bold]

    \b  rlobj serve embedded
      rlobj serve Qwen/Qwen3-1.7B-Base --port 8001
      rlobj serve Qwen/Qwen3-8B --set tensor_parallel_size=2
    """
    from rich.console import Console

    from rlobj_cli.screen import loading

    console = Console()
    signal.signal(signal.SIGTERM, _interrupt)
    with loading(console):
        from rlobj.config import parse_setting
        from rlobj.presets import merge
        from rlobj.samplers.vllm import Server

        arguments: dict[str, Any] = {}
        for text in settings or []:
            arguments = merge(arguments, parse_setting(text))
        server = Server(_source(model), host=host, port=port, dtype=dtype, arguments=arguments)
    with server:
        try:
            _run(console, server, model)
        except KeyboardInterrupt:
            console.print("\nStopping the server.")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _source(model: str) -> str:
    """The folder or hub id that vLLM loads."""
    if model != "embedded":
        return model
    from rlobj.embedded import EMBEDDED_PROFILE, embedded_policy

    return str(embedded_policy(EMBEDDED_PROFILE["data"]["source"]))


def _run(console: Console, server: Server, model: str) -> None:
    """Wait until the server answers, say how to use it, and stay until it ends.

    Raises:
        RunError: it ended by itself.
    """
    from rich.text import Text

    started = time.monotonic()
    console.print(Text.assemble(("rlobj serve", "bold"), f"  {model}"))
    console.print(Text(f"vLLM starts; its log is {server.log}", style="dim"), soft_wrap=True)
    with console.status("starting", spinner_style="cyan"):
        server.wait(math.inf)
    key = "as RLOBJ_API_KEY is set here"
    if server.key_path is not None:
        key = f"{server.key_path} (your trainers on this machine find it)"
    for name, text in {"url": server.url, "weights": server.dtype, "key": key}.items():
        console.print(Text.assemble((f"  {name:9}", "dim"), text), soft_wrap=True)
    named = "" if model == "embedded" else f" --model {model}"
    where = "" if server.default_url else f" --set sampling.server.url={server.url}"
    console.print(
        Text(
            f"Ready after {time.monotonic() - started:.0f} s. Train from another terminal with:\n"
            f"  rlobj train --preset stapo{named} --sampler vllm-server{where}\n"
            "Ctrl-C stops the server."
        ),
        soft_wrap=True,
    )
    if not server.local:
        warning = (
            "Other machines reach this server: set RLOBJ_API_KEY to the key there. HTTP is not "
            "encrypted, and who reads the network reads the key: use a private network, or leave "
            "out --host and use an SSH tunnel."
        )
        console.print(Text(warning, style="yellow"), soft_wrap=True)
    server.join()
