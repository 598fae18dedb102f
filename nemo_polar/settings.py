# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Settings: one pydantic model a concern, each field with its unit, composed by Hydra from ``conf/``.

Unknown keys are errors. Nothing here reads the environment or the disk.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from nemo_polar.types import Kind


class Settings(BaseModel):
    """Base: frozen, and a misspelt key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SamplingPolicy(Settings):
    """What the trainer wants drawn. By default it overrides the harness: T=1, no truncation, so that every token can be re-scored."""

    override: bool = True
    """False: the harness's own temperature, top-p and so on are used, and recorded."""
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = -1
    min_p: float = Field(0.0, ge=0, le=1)
    max_tokens: int | None = Field(None, gt=0)
    """Upper bound on the tokens of one reply, whatever the harness asks for."""
    seed: int | None = None
    """With a seed, each call draws with one derived from it, the session and the turn, so that a run can be repeated."""


class CaptureSettings(Settings):
    """The proxy's bounds. Every one of them answers in the provider's shape when it is reached."""

    host: str = "127.0.0.1"
    """Never beyond loopback unless told to."""
    port: int = Field(0, ge=0, le=65535)
    """0: any free one."""
    socket: str | None = None
    """Also listen on this Unix socket."""
    control_host: str = "127.0.0.1"
    control_port: int = Field(0, ge=0, le=65535)
    control: bool = True
    """The control listener; off when sessions are only made in process."""
    model: str = "polar"
    """The name the harness is told; other names are answered with the provider's 'no such model'."""
    any_model: bool = True
    """True: whatever model name a harness sends is served (several send names of their own for side calls)."""
    max_body_bytes: int = Field(16 * 1024 * 1024, gt=0)
    max_parts: int = Field(20_000, gt=0)
    """Message parts in one request."""
    max_sessions: int = Field(4096, gt=0)
    max_calls: int = Field(1024, gt=0)
    """Calls in flight in all; more get 429."""
    max_calls_per_session: int = Field(16, gt=0)
    session_seconds: float = Field(6 * 3600, gt=0)
    """Life of a secret, unless the session asks for less."""
    call_seconds: float = Field(1800, gt=0)
    """Deadline of one call, from its first byte."""
    read_seconds: float = Field(60, gt=0)
    """For a client to send its whole request."""
    grace_seconds: float = Field(30, ge=0)
    """How long a sample runs on after its client has gone."""
    keep_alive_seconds: float = Field(5, gt=0)
    """Silence on a stream after which a keep-alive is sent."""
    engine_idle_seconds: float = Field(300, gt=0)
    """Silence of the engine in one sample after which it counts as lost."""
    engine_retries: int = Field(2, ge=0)
    """Attempts more, when the engine fails before the first token."""
    shutdown_seconds: float = Field(10, ge=0)
    """For calls in flight, at a graceful shutdown."""
    render_threads: int = Field(2, gt=0)
    thread_bytes: int = Field(32_768, ge=0)
    """Requests with more new text than this are rendered off the event loop."""
    sampling: SamplingPolicy = SamplingPolicy()
    max_context: int | None = Field(None, gt=0)
    """Tokens; None: what the engine reports."""


class CodecSettings(Settings):
    """How messages become ids."""

    tokenizer: str
    """Folder with ``tokenizer.json`` (or a ``.tiktoken`` vocabulary), ``tokenizer_config.json`` and, if separate, ``chat_template.jinja``."""
    renderer: str = "auto"
    """A renderer of the `renderers` package by name, ``template`` for the model's own Jinja template, ``auto`` to choose."""
    chat_template: str | None = None
    """Path of a Jinja template to use instead of the model's own."""
    thinking_retention: Literal["all", "template"] = "all"
    """``all``: what was sampled stays in context. ``template``: as the template would render it, which forks."""
    special_tokens_in_text: Literal["escape", "as_template"] = "escape"
    """What special tokens written out in tool output or files become: ordinary text, or the real thing."""
    template_options: dict[str, Any] = {}
    """Passed to the template, e.g. ``enable_thinking``."""
    call_format: Literal["auto", "hermes", "qwen_xml", "none"] = "auto"
    """How the model writes tool calls, where the renderer does not say: JSON in <tool_call>, or XML functions."""


class TracePolicy(Settings):
    """Which tokens are trained."""

    train_kinds: tuple[Kind, ...] = (Kind.MAIN, Kind.SUBAGENT, Kind.COMPACTION)
    max_trace_tokens: int | None = Field(None, gt=0)
    """A longer trace is dropped whole and its tokens counted as truncated; never clipped."""
    train_unrescorable: bool = False
    """Train tokens drawn under a truncated or tempered distribution."""
