# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Settings: one pydantic model a concern, each field with its unit, composed by Hydra from ``conf/``.

Unknown keys are errors. Nothing here reads the environment or the disk.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_polar.types import Kind


class Settings(BaseModel):
    """Base: frozen, and a misspelt key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class WrittenFile(Settings):
    """A file that is named by where it lies, or written out."""

    source: str | None = None
    """Relative to the task file's folder."""
    text: str | None = None
    base64: str | None = None
    """What is not text, written out in base64; white space in it does not count."""
    executable: bool = False

    def mistake(self) -> str | None:
        """What is wrong with it by itself; None where nothing is. All but a ``source`` can then be read."""
        if sum(given is not None for given in (self.source, self.text, self.base64)) != 1:
            return "needs one of 'source', 'text' and 'base64'"
        try:
            self.written()
        except UnicodeEncodeError:
            return "'text' holds half of a surrogate pair, which no file can"
        except ValueError as exc:
            return f"'base64' is not base64: {exc}"
        return None

    def written(self) -> bytes:
        """The contents that are written out; none where they lie in a file."""
        if self.base64 is not None:
            return base64.b64decode("".join(self.base64.split()), validate=True)
        return (self.text or "").encode()


class SamplingPolicy(Settings):
    """What the trainer wants drawn. By default it overrides the harness: T=1, no truncation: every token can be re-scored."""

    override: bool = True
    """False: the harness's own temperature, top-p and so on are used, and recorded."""
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = -1
    min_p: float = Field(default=0.0, ge=0, le=1)
    max_tokens: int | None = Field(default=None, gt=0)
    """Upper bound on the tokens of one reply, whatever the harness asks for."""
    seed: int | None = None
    """With a seed, each call draws with one derived from it, the session and the turn, so that a run can be repeated."""


class CaptureSettings(Settings):
    """The proxy's bounds. Every one of them answers in the provider's shape when it is reached."""

    host: str = "127.0.0.1"
    """Never beyond loopback unless told to."""
    port: int = Field(default=0, ge=0, le=65535)
    """0: any free one."""
    socket: str | None = None
    """Also listen on this Unix socket."""
    control_host: str = "127.0.0.1"
    control_port: int = Field(default=0, ge=0, le=65535)
    control: bool = True
    """The control listener; off when sessions are only made in process."""
    model: str = "polar"
    """The name the harness is told; other names are answered with the provider's 'no such model'."""
    any_model: bool = True
    """True: whatever model name a harness sends is served (several send names of their own for side calls)."""
    max_connections: int = Field(default=4096, gt=0)
    """Of each listener; fewer where the process may not open so many files."""
    max_header_bytes: int = Field(default=16 * 1024, ge=1024)
    """Of a request line, of one header, and of what has come of a header that is not complete."""
    max_body_bytes: int = Field(default=16 * 1024 * 1024, gt=0)
    """Of a request, after its content encoding is undone."""
    max_parts: int = Field(default=20_000, gt=0)
    """Message parts in one request."""
    max_images: int = Field(default=64, ge=0)
    """Images that are new in one request."""
    max_image_bytes: int = Field(default=8 * 1024 * 1024, gt=0)
    """Of one image's URL, which holds the image itself where it is sent inline."""
    max_sessions: int = Field(default=4096, gt=0)
    max_calls: int = Field(default=1024, gt=0)
    """Calls in flight in all; more get 429."""
    max_calls_per_session: int = Field(default=16, gt=0)
    max_streams: int = Field(default=1024, gt=0)
    """Streamed answers under way in all; more get 429."""
    session_seconds: float = Field(default=6 * 3600, gt=0)
    """Life of a secret, unless the session asks for less."""
    idle_seconds: float | None = Field(default=None, gt=0)
    """A session without a call for so long is closed; None: never. Not under ``read_seconds``, as a call may take that long to
    arrive."""
    call_seconds: float = Field(default=1800, gt=0)
    """Deadline of one call, from its first byte."""
    header_seconds: float = Field(default=20, gt=0)
    """For a client to send the header of a request it has begun."""
    read_seconds: float = Field(default=60, gt=0)
    """For a client to send the body of its request."""
    write_seconds: float = Field(default=60, gt=0)
    """For a client to take some of what lies ready for it; then the connection is cut, and the sample goes on as when a client
    has gone."""
    connection_idle_seconds: float = Field(default=75, gt=0)
    """For a connection to wait for its next request."""
    grace_seconds: float = Field(default=30, ge=0)
    """How long a sample runs on after its client has gone."""
    keep_alive_seconds: float = Field(default=5, gt=0)
    """Silence on a stream after which a keep-alive is sent."""
    stream_interval_seconds: float = Field(default=0.02, ge=0)
    """Between two writes to one stream at least. Tokens that come sooner go out together; the first and last do not wait."""
    engine_idle_seconds: float = Field(default=300, gt=0)
    """Silence of the engine in one sample after which it counts as lost."""
    engine_retries: int = Field(default=2, ge=0)
    """Attempts more, when the engine fails before the first token."""
    shutdown_seconds: float = Field(default=10, ge=0)
    """For calls in flight, at a graceful shutdown."""
    render_threads: int = Field(default=2, gt=0)
    thread_bytes: int = Field(default=32_768, ge=0)
    """Requests with more new text than this are rendered off the event loop."""
    reuse_bytes: int = Field(default=256 * 1024 * 1024, ge=0)
    """Request text of all sessions kept in memory, so that what a harness sends again need not be read again."""
    root_cache_bytes: int = Field(default=64 * 1024 * 1024, ge=0)
    """First prompts kept as ids: the rollouts of a group send the same one."""
    sampling: SamplingPolicy = SamplingPolicy()
    max_context: int | None = Field(default=None, gt=0)
    """Tokens; None: what the engine reports."""

    @model_validator(mode="after")
    def _idle_is_longer_than_a_request_takes(self) -> Self:
        if self.idle_seconds is not None and self.idle_seconds < self.read_seconds:
            raise ValueError("idle_seconds: must be at least read_seconds, or a session is closed while its call arrives")
        return self


class CodecSettings(Settings):
    """How messages become ids."""

    tokenizer: str
    """Folder with ``tokenizer.json`` (or a ``.tiktoken`` vocabulary), its config and, if separate, ``chat_template.jinja``."""
    renderer: str = "auto"
    """A renderer of the `renderers` package by name, ``template`` for the model's Jinja template, ``auto`` to choose."""
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
    max_trace_tokens: int | None = Field(default=None, gt=0)
    """A longer trace is dropped whole and its tokens counted as truncated; never clipped."""
    train_unrescorable: bool = False
    """Train tokens drawn under a truncated or tempered distribution."""


class Budget(Settings):
    """What one rollout may use. None: no bound of its own."""

    seconds: float | None = Field(default=None, gt=0)
    """For the harness's own run."""
    turns: int | None = Field(default=None, gt=0)
    """Model calls answered."""
    tokens: int | None = Field(default=None, gt=0)
    """Sampled tokens."""


class PluginSettings(Settings):
    """A plug-in by its name in the registry (or ``package.module:attribute``), with options of its own."""

    name: str
    options: dict[str, Any] = {}


class SandboxSettings(PluginSettings):
    """Where harnesses and verifiers run."""

    toolchain: str | None = None
    """Host folder with the pinned CLIs; mounted read-only."""
    max_output_bytes: int = Field(default=8 * 1024 * 1024, gt=0)
    """Kept of a command's stdout and of its stderr, each."""


class EngineSettings(PluginSettings):
    """The inference engine. Its options go to the engine's class as they are."""

    url: str | None = None
    urls: tuple[str, ...] = ()
    """Several replicas of one engine, in place of ``url``; the options go to each."""
    launch: Literal["none", "local_vllm"] = "none"
    """``local_vllm``: start the embedded CPU engine for this run, and stop it after."""
    launch_options: dict[str, Any] = {}
    relay: bool = False
    """Put the recording relay in front of the engine, so that audit has a log that is not ours (``engine.jsonl``; with
    replicas a relay and a log for each, ``engine-<n>.jsonl``)."""

    @model_validator(mode="after")
    def _one_way_to_reach_it(self) -> Self:
        if self.urls and (self.url is not None or self.launch != "none"):
            raise ValueError("urls: not together with url or launch")
        if len(set(self.urls)) < len(self.urls):
            raise ValueError("urls: the same replica is named twice")
        return self


class PolicySettings(Settings):
    """The model that is trained, and how messages become its ids."""

    name: str
    model: str | None = None
    """Folder with its weights; needed only to launch an engine."""
    max_output: int = Field(default=4096, gt=0)
    """Tokens of one reply, as told to the harness."""
    codec: CodecSettings


class EnvSettings(Settings):
    """The tasks, and what one rollout of them may use unless a task says otherwise."""

    tasks: tuple[str, ...]
    """Task files, YAML or JSONL. None where tasks come one at a time (NeMo Gym, NeMo RL)."""
    only: tuple[str, ...] = ()
    """Ids of the tasks to take; empty: all."""
    limit: int | None = Field(default=None, gt=0)
    """The first so many tasks."""
    budget: Budget = Budget(seconds=600)


class StageSettings(Settings):
    """How many rollouts may be in each stage at a time."""

    prepare: int = Field(default=4, gt=0)
    run: int = Field(default=8, gt=0)
    verify: int = Field(default=4, gt=0)
    build: int = Field(default=2, gt=0)
    verify_seconds: float = Field(default=120, gt=0)
    """Of a rollout's deadline, kept back from the harness for the verifier."""

    @property
    def open(self) -> int:
        """Rollouts under way in all: enough to keep every stage busy, and a bound on the sandboxes that wait."""
        return self.prepare + self.run + self.verify + self.build


class EvalSettings(Settings):
    """How `polar eval` reads a run. None of it changes what is run."""

    k: tuple[Annotated[int, Field(gt=0)], ...] = ()
    """The k of pass@k; empty: 1 and the group size."""
    threshold: float = Field(default=1.0, allow_inf_nan=False)
    """A rollout passes with at least this reward."""
    confidence: float = Field(default=0.95, gt=0, lt=1)
    resamples: int = Field(default=10_000, gt=0)
    """Of the paired test, where there are too many tasks to look at every assignment of signs."""
    seed: int = 0
    """Of that test."""
    like: str | None = None
    """The run whose harness, sandbox, sampling and rendering this one was told to take."""


class ProxySettings(Settings):
    """A capture proxy by itself, for harnesses that somebody else runs."""

    engine: EngineSettings
    policy: PolicySettings
    capture: CaptureSettings = CaptureSettings()
    traces: TracePolicy = TracePolicy()


class RunSettings(Settings):
    """One run: tasks times rollouts, into one folder."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """The run folder is ``<out>/<name>``."""
    out: str = "runs"
    group_size: int = Field(default=4, gt=0)
    """Rollouts of each task."""
    seconds: float = Field(default=1800, gt=0)
    """One rollout's deadline over all stages and attempts. Waiting for its turn in a stage is not counted."""
    retries: int = Field(default=1, ge=0)
    """Attempts more, when an attempt fails for reasons of infrastructure."""
    env: EnvSettings
    harness: PluginSettings
    sandbox: SandboxSettings
    engine: EngineSettings
    policy: PolicySettings
    capture: CaptureSettings = CaptureSettings()
    traces: TracePolicy = TracePolicy()
    stages: StageSettings = StageSettings()
    evaluation: EvalSettings = EvalSettings()
