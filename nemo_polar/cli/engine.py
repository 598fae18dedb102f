# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""``polar engine``: an engine by itself, for whatever wants one behind a URL: NeMo Gym, ``polar proxy``, a client of one's
own."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from nemo_polar.cli.boundary import guarded, run_async

app = typer.Typer(help="An engine by itself, on this machine.", no_args_is_help=True, rich_markup_mode=None)

WATCH_SECONDS = 0.5


@app.callback()
def _engine() -> None:
    pass


@app.command()
@guarded
def serve(
    model: Annotated[Path | None, typer.Option(metavar="FOLDER", help="A model, for the embedded CPU engine.")] = None,
    script: Annotated[
        str | None, typer.Option(metavar="SPEC", help="No model: a .json list of replies, or package.module:function.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="With --script: what messages are rendered with.")
    ] = None,
    chat_template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --script: in place of the tokenizer's own.")
    ] = None,
    tool_call_parser: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --model: how the model writes tool calls, for the chat API: hermes."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 0,
    name: Annotated[str, typer.Option(help="What the model is called over HTTP.")] = "policy",
    max_context: Annotated[int, typer.Option(min=16, help="Tokens, prompt and reply together.")] = 8192,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write down every call with token ids: what polar audit compares with.")
    ] = None,
    output: Annotated[Path, typer.Option(metavar="FILE", help="With --model: what vLLM prints.")] = Path("engine.out"),
    python: Annotated[
        Path | None, typer.Option(metavar="PATH", help="With --model: the engine's Python. [default: make engine's]")
    ] = None,
) -> None:
    """Serve an engine on 127.0.0.1 until SIGTERM or Ctrl-C. Prints one line of JSON with its URL when it is ready.

    The embedded CPU engine, as NeMo Gym's vllm_model needs it for tools:

        polar engine serve --model .polar/models/demo --tool-call-parser hermes --port 8000

    A scripted one, for tests, which answers at once:

        polar engine serve --script my_package.replies:script --tokenizer .polar/models/demo

    Both take token ids and OpenAI chat requests. The log has all calls with --script, those with token ids with --model.
    """
    if (model is None) == (script is None):
        raise typer.BadParameter("give either --model or --script")
    if script is not None:
        if tokenizer is None:
            raise typer.BadParameter("--script needs --tokenizer")
        run_async(_scripted(script, tokenizer, chat_template, port=port, name=name, max_context=max_context, log=log))
        return
    assert model is not None
    options = {"served_model": name, "max_context": max_context, "tool_call_parser": tool_call_parser}
    run_async(_vllm(model, options, python=python, port=port, log=log, output=output))


async def _scripted(
    script: str, tokenizer: Path, chat_template: Path | None, *, port: int, name: str, max_context: int, log: Path | None
) -> None:
    from nemo_polar.engines.script import ScriptedOptions, load_script
    from nemo_polar.engines.scripted_core import ScriptedCore
    from nemo_polar.engines.scripted_openai_routes import ScriptedOpenAIRoutes
    from nemo_polar.engines.scripted_server import ScriptedServer
    from nemo_polar.engines.serve import LocalServer
    from nemo_polar.settings import CodecSettings
    from nemo_polar.tokens.load import load_codec
    from nemo_polar.tokens.tokenizer import Tokenizer

    given = None if chat_template is None else str(chat_template)
    codec = load_codec(CodecSettings(tokenizer=str(tokenizer), chat_template=given))
    options = ScriptedOptions(
        model=name, vocab=len(Tokenizer.load(tokenizer)), max_context=max_context, stop_token_ids=codec.stop_token_ids
    )
    core = ScriptedCore(load_script(script), log=log, options=options)
    stop = _told_to_stop()
    try:
        server = ScriptedServer(core)
        ScriptedOpenAIRoutes(server, codec)
        async with LocalServer(server.app, port=port) as listening:
            _announce(listening.url, name)
            await stop.wait()
    finally:
        core.close()


async def _vllm(
    model: Path, options: dict[str, Any], *, python: Path | None, port: int, log: Path | None, output: Path
) -> None:
    from nemo_polar.engines.local_vllm import LocalVllm, VllmOptions
    from nemo_polar.engines.log import EngineLog
    from nemo_polar.engines.relay import Relay
    from nemo_polar.engines.serve import LocalServer
    from nemo_polar.errors import EngineUnavailable
    from nemo_polar.rollout.compose import engine_python

    stop = _told_to_stop()
    async with AsyncExitStack() as stack:
        server = LocalVllm(
            model,
            python=python or engine_python(),
            log_path=output,
            port=0 if log is not None else port,  # the port asked for is that of the front
            options=VllmOptions(**options),
        )
        starting = asyncio.ensure_future(stack.enter_async_context(server))
        if not await _done_before(starting, stop):
            return
        url = server.url
        if log is not None:
            relay = Relay(url, EngineLog(log))
            stack.push_async_callback(relay.close)
            url = (await stack.enter_async_context(LocalServer(relay.app, port=port))).url
        _announce(url, options["served_model"])
        while not stop.is_set():
            if not server.running:
                raise EngineUnavailable(f"the engine has ended by itself. The end of {output}:\n{server.log_tail()}")
            await _wait(stop, WATCH_SECONDS)


def _told_to_stop() -> asyncio.Event:
    """Set by SIGTERM and SIGINT."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def _done_before(work: asyncio.Future[Any], stop: asyncio.Event) -> bool:
    """Wait for ``work``; cancelled, and False, if ``stop`` is set first."""
    told = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({work, told}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work
            return True
        work.cancel()
        await asyncio.wait({work})
        return False
    finally:
        told.cancel()


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return


def _announce(url: str, model: str) -> None:
    from nemo_polar.trajectory.codec import dumps

    print(dumps({"url": url, "model": model}), flush=True)
