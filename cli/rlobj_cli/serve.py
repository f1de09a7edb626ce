"""`rlobj serve`: a vLLM server that trainers sample from and push weights to."""

import signal
from typing import Annotated

import typer
from rich.text import Text

from rlobj.reporting.terminal import Screen, importing, working
from rlobj_cli.screen.console import calm_libraries


def serve(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A model folder or GGUF file, a hub id, a run, or embedded."
        ),
    ],
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0: all addresses.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=1, max=65535, help="Port to listen on.")
    ] = 8000,
    lora_rank: Annotated[
        int,
        typer.Option(
            metavar="R",
            min=0,
            max=512,
            help="Largest rank of the LoRA adapters that trainers send; 0: they send all weights.",
        ),
    ] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", metavar="KEY=VALUE", help="An engine argument of vLLM; repeatable."
        ),
    ] = None,
) -> None:
    """Start a vLLM server for rlobj train --sampler vllm-server.

    Every request needs a key: RLOBJ_API_KEY in the environment, or a key that this command creates
    and keeps in a file that only you can read. Ctrl-C stops the server and all its processes.

    [bold]Examples[/bold]

    \b  rlobj serve embedded
      rlobj serve Qwen/Qwen3-1.7B-Base --port 8001
      rlobj serve Qwen/Qwen3-8B --set tensor_parallel_size=2 --lora-rank 16
    """
    console = Screen()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with importing("torch", "transformers"):
        from rlobj.evaluation.engines import find_model
        from rlobj.samplers.vllm import Server
        from rlobj.settings.layers import merged, parse_setting

        arguments = merged(("--set", parse_setting(text)) for text in settings or [])
        source = find_model(model).locate()
    calm_libraries(console)
    with working(console, "checking vLLM"):
        server = Server(source, host=host, port=port, arguments=arguments, lora_rank=lora_rank)
    console.print(Text(f"vLLM starts; its log is {server.log}"), soft_wrap=True)
    with server:
        try:
            with working(console, "starting"):
                server.wait()
            key = str(server.key_path or "the value of RLOBJ_API_KEY")
            for name, text in {"url": server.url, "key": key}.items():
                console.print(Text.assemble((f"  {name:9}", "dim"), text), soft_wrap=True)
            named = "" if model == "embedded" else f" --model {model}"
            command = f"rlobj train --preset stapo{named} --sampler vllm-server --set "
            command += f"sampling.server.url={server.url}"
            command += f" --set model.lora.rank={lora_rank}" if lora_rank else ""
            console.print(Text(f"Ready. Train with:\n  {command}"), soft_wrap=True)
            server.join()
        except KeyboardInterrupt:
            console.print("\nStopping the server.")
