# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""How replies are drawn under NeMo Gym: token ids straight to the vLLM behind Gym's model server, or messages to that server.

    exact     engine ``vllm``: our ids in, streamed out, exact by construction. Gym's model server is not asked, and what its
              config would add to a request (``sampling_overrides``, ``extra_body``) does not apply.
    checked   engine ``gym_model``: vLLM renders; what it reports is checked against what was recorded, a mismatch forks and is
              counted, and replies come in one burst.

Nothing of Gym's is imported or changed here, its ``token_id_capture`` least of all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from nemo_polar.engines.http_client import EngineHttp
from nemo_polar.engines.vllm import VllmEngine
from nemo_polar.errors import ConfigError, EngineError, EngineOverloaded, EngineTimeout, EngineUnavailable
from nemo_polar.gym.settings import GymAgentSettings
from nemo_polar.settings import EngineSettings

AUTO = "auto"
PATIENCE_SECONDS = 30.0
"""For a vLLM that cannot be reached: it may still be starting, and the route should not hang on who was first."""
_AGAIN_SECONDS = 1.0
_CONNECT_SECONDS = 10.0

Probe: TypeAlias = Callable[[str], Awaitable[None]]
"""Given a URL, returns if token ids can be drawn there, and raises an ``EngineError`` that says why not."""


@dataclass(frozen=True, slots=True)
class Route:
    """The route in force."""

    kind: Literal["exact", "checked"]
    engine: EngineSettings
    """As a Polar run takes it."""
    sentence: str
    """For the start-up line: which route, and what it guarantees."""


async def choose_route(
    settings: GymAgentSettings,
    *,
    api_key: str | None = None,
    patience: float = PATIENCE_SECONDS,
    probe: Probe | None = None,
) -> Route:
    """The route that ``engine_url`` asks for; with ``auto`` the exact one where it can be had.

    ``api_key``: the engine's, as Gym's model server has it. ``patience``: seconds to wait for an engine that does not answer.
    ``probe`` stands in for trying it, in tests.

    Raises:
        ConfigError: nothing to draw from is named, or nobody tells the context length.
        EngineError: an engine that was named outright cannot be used.
    """
    named = urls_of(settings.engine_url)
    if settings.engine_url is None:
        return await _checked(settings, "as engine_url is null", api_key)
    urls = named or urls_of(settings.model_base_urls)
    if not urls:
        return await _checked(settings, "as Gym's config names no vLLM behind that server", api_key)
    reason = await _reason_against(urls, probe or _prober(settings.model, api_key), patience)
    if reason is None:
        return exact_route(settings, urls, api_key)
    if named:
        raise type(reason)(f"engine_url: {reason}")
    return await _checked(settings, f"as token ids cannot be drawn straight from vLLM: {reason}", api_key)


# --- pure -------------------------------------------------------------------------------------------------------------


def urls_of(value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Engine URLs without a trailing ``/v1``, each once. A string may hold several, between commas; ``auto`` is none.

    Raises:
        ConfigError: one is no http URL.
    """
    words = value.split(",") if isinstance(value, str) else [*(value or ())]
    urls = tuple(dict.fromkeys(w.strip().rstrip("/").removesuffix("/v1") for w in words if w.strip() not in ("", AUTO)))
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"engine_url: {url!r} is no URL of an engine; give auto, null, or http://HOST:PORT")
    return urls


def exact_route(settings: GymAgentSettings, urls: Sequence[str], api_key: str | None = None) -> Route:
    """Token ids to ``urls``, all of them replicas of one model."""
    one = len(urls) == 1
    engine = EngineSettings(
        name="vllm",
        url=urls[0] if one else None,
        urls=() if one else tuple(urls),
        relay=settings.relay,
        options=_options(model=settings.model, api_key=api_key),
    )
    where = f"vLLM at {urls[0]}" if one else f"the {len(urls)} replicas of vLLM at {', '.join(urls)}"
    return Route(
        "exact",
        engine,
        f"route exact: token ids go straight to {where}, so every trained token is exact by construction, and replies stream",
    )


def checked_route(settings: GymAgentSettings, max_context: int, why: str) -> Route:
    """Messages to Gym's model server; ``why`` goes into the sentence.

    Raises:
        ConfigError: Gym's config names no model server.
    """
    if settings.model_url is None:
        raise ConfigError("model_url: no model server of Gym's is known, and no engine that takes token ids; give engine_url")
    options = _options(model=settings.model, max_context=max_context)
    return Route(
        "checked",
        EngineSettings(name="gym_model", url=settings.model_url, options=options),
        f"route checked: messages go to Gym's model server at {settings.model_url}, which renders them; the prompts it reports "
        f"are checked against what was recorded, a mismatch forks and is counted, and replies come in one burst ({why})",
    )


def _options(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


# --- with a look at the engine ----------------------------------------------------------------------------------------


def _prober(model: str | None, api_key: str | None) -> Probe:
    async def probe(url: str) -> None:
        engine = VllmEngine(url, model=model, api_key=api_key, connect_timeout=_CONNECT_SECONDS)
        try:
            await engine.connect()
        finally:
            await engine.close()

    return probe


async def _reason_against(urls: Sequence[str], probe: Probe, patience: float) -> EngineError | None:
    """Why token ids cannot be drawn from all of ``urls``; None when they can."""
    until = asyncio.get_running_loop().time() + patience

    async def reason(url: str) -> EngineError | None:
        while True:
            try:
                return await probe(url)
            except (EngineUnavailable, EngineTimeout, EngineOverloaded) as exc:
                if asyncio.get_running_loop().time() >= until:
                    return exc
            except EngineError as exc:
                return exc
            await asyncio.sleep(_AGAIN_SECONDS)

    reasons = await asyncio.gather(*map(reason, urls))
    return next((r for r in reasons if r is not None), None)


async def _checked(settings: GymAgentSettings, why: str, api_key: str | None) -> Route:
    context = settings.max_context or await _context_behind(urls_of(settings.model_base_urls), settings.model, api_key)
    if context is None:
        raise ConfigError(
            f"max_context: Gym's model server does not tell its context length, and is used, {why}; set max_context in the "
            "agent's block, in tokens, as its vLLM was started with (--max-model-len)"
        )
    return checked_route(settings, context, why)


async def _context_behind(urls: Sequence[str], model: str | None, api_key: str | None) -> int | None:
    """The least context, in tokens, of the vLLMs behind Gym's model server; None where one does not say."""
    found = [await _context_of(url, model, api_key) for url in urls]
    return min((n for n in found if n is not None), default=None) if None not in found else None


async def _context_of(url: str, model: str | None, api_key: str | None) -> int | None:
    http = EngineHttp(url, connect_timeout=_CONNECT_SECONDS, idle_timeout=_CONNECT_SECONDS, api_key=api_key)
    try:
        cards = (await http.call("GET", "/v1/models", timeout=_CONNECT_SECONDS))["data"]
        limits = {str(card["id"]): int(card["max_model_len"]) for card in cards if card.get("max_model_len")}
    except (EngineError, KeyError, TypeError, ValueError):
        return None  # whatever it is, it does not tell
    finally:
        await http.close()
    return limits.get(model) if model in limits else max(limits.values(), default=None)
