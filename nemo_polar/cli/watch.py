# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A proxy as seen from its control listener: one look, and what two looks say. Nothing is drawn here."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from nemo_polar.errors import ConfigError, PolarError
from nemo_polar.rollout.address import Address

_SECONDS = 10.0
"""For one answer of the proxy."""
_HEALTH_SECONDS = 3.0
"""For the one that waits for the engine."""
_TIMES = {
    "call": "polar_request_seconds",
    "first_token": "polar_engine_first_token_seconds",
    "added": "polar_added_seconds",
    "loop_lag": "polar_event_loop_lag_seconds",
    "commit": "polar_journal_commit_seconds",
}
_RATES = {
    "calls": "polar_samples_total",
    "replies": "polar_replies_total",
    "failed": "polar_failed_replies_total",
    "sampled_tokens": "polar_sampled_tokens_total",
    "prompt_tokens": "polar_prompt_tokens_total",
    "cpu": "process_cpu_seconds_total",
}


class Unreachable(PolarError):
    """The proxy does not answer."""


Sample = tuple[Mapping[str, str], float]


@dataclass(frozen=True, slots=True)
class Look:
    """What a proxy told at one moment."""

    at: float
    """Monotonic seconds."""
    samples: Mapping[str, list[Sample]]
    """Metrics by name, with their labels."""
    health: Mapping[str, Any]
    busiest: list[dict[str, Any]]

    def total(self, name: str) -> float:
        """A metric over all its labels; 0 when there is none."""
        return sum(value for _, value in self.samples.get(name, ()))

    def by(self, name: str, label: str) -> dict[str, float]:
        """A metric by one of its labels."""
        found: dict[str, float] = {}
        for labels, value in self.samples.get(name, ()):
            found[labels[label]] = found.get(labels[label], 0.0) + value
        return found


class Watcher:
    """Asks one proxy. Close it after use."""

    def __init__(self, address: Address) -> None:
        self.url = address.url
        headers = {"Authorization": f"Bearer {address.secret}"}
        try:
            self._http = httpx.Client(base_url=address.url, headers=headers, timeout=_SECONDS, trust_env=False)
        except (httpx.InvalidURL, UnicodeEncodeError) as exc:
            raise ConfigError(f"{address.url!r} or its secret cannot be used: {exc}") from exc

    def close(self) -> None:
        self._http.close()

    def look(self, sessions: int) -> Look:
        """How the proxy is now, with so many of its busiest sessions.

        Raises:
            Unreachable: it does not answer, or what answers is no proxy.
            ConfigError: the secret is wrong.
        """
        metrics = self._get("/metrics").text
        at = time.monotonic()
        busiest = self._get("/sessions", busiest=sessions).json()
        try:
            health = self._get("/health", seconds=_HEALTH_SECONDS).json()
        except _TooSlow:
            health = {"ok": False, "problem": f"no answer to GET /health within {_HEALTH_SECONDS:g} s"}
        try:
            found: dict[str, list[Sample]] = {}
            for family in text_string_to_metric_families(metrics):
                for sample in family.samples:
                    found.setdefault(sample.name, []).append((sample.labels, sample.value))
        except ValueError as exc:
            raise Unreachable(f"what answers at {self.url} is no proxy of this version: {exc}") from exc
        return Look(at, found, health, busiest)

    def _get(self, path: str, *, seconds: float = _SECONDS, **query: int) -> httpx.Response:
        try:
            answer = self._http.get(path, params=query, timeout=seconds)
        except (httpx.ReadTimeout, httpx.ConnectTimeout) as exc:
            raise _TooSlow(f"{self.url} does not answer within {seconds:g} s") from exc
        except (httpx.TransportError, httpx.InvalidURL) as exc:
            raise Unreachable(f"no proxy can be reached at {self.url}: {str(exc) or type(exc).__name__}") from exc
        if answer.status_code == 401:
            raise ConfigError(f"the proxy at {self.url} has another control secret")
        if answer.status_code != 200 and path != "/health":
            raise Unreachable(f"what answers at {self.url} is no control listener: GET {path} gives {answer.status_code}")
        return answer


class _TooSlow(Unreachable):
    pass


def frame(before: Look | None, now: Look) -> dict[str, Any]:
    """What to show. Rates and times are of the span between the two looks; None where nothing happened, or with one look."""
    health = now.health
    started = now.total("process_start_time_seconds")
    return {
        "ok": health["ok"],
        "problem": health.get("problem"),
        "model": health.get("model"),
        "weights_version": int(now.total("polar_weights_version")),
        "paused": bool(now.total("polar_paused")),
        "up_seconds": max(0.0, time.time() - started) if started else None,
        "sessions": int(now.total("polar_sessions_open")),
        "in_flight": int(now.total("polar_calls_in_flight")),
        "streams": int(now.total("polar_streams_open")),
        "connections": int(now.total("polar_connections_open")),
        "per_second": {key: _rate(before, now, name) for key, name in _RATES.items()},
        "seconds": {key: _quantiles(before, now, name) for key, name in _TIMES.items()},
        "journal": {
            "healthy": bool(now.total("polar_journal_healthy")),
            "queued": int(now.total("polar_journal_queue_rows")),
            "errors": int(now.total("polar_journal_errors_total")),
        },
        "memory_bytes": int(now.total("process_resident_memory_bytes")),
        "engine_failures": _counts(now.by("polar_engine_failures_total", "kind")),
        "refused": _counts(now.by("polar_refused_total", "limit")),
        "replicas": health.get("replicas", []),
        "busiest": now.busiest,
    }


def _counts(found: Mapping[str, float]) -> dict[str, int]:
    return {key: int(value) for key, value in found.items()}


def _rate(before: Look | None, now: Look, name: str) -> float | None:
    if before is None or now.at <= before.at:
        return None
    return max(0.0, now.total(name) - before.total(name)) / (now.at - before.at)


def _quantiles(before: Look | None, now: Look, name: str) -> dict[str, float | None]:
    counts = {} if before is None else now.by(f"{name}_bucket", "le")
    for bound, count in ({} if before is None else before.by(f"{name}_bucket", "le")).items():
        counts[bound] = counts.get(bound, 0.0) - count
    buckets = sorted((float(bound), count) for bound, count in counts.items())
    return {"p50": quantile(0.5, buckets), "p99": quantile(0.99, buckets)}


def quantile(share: float, buckets: list[tuple[float, float]]) -> float | None:
    """About the value that ``share`` of the observations are at most, as Prometheus works it out: within a bucket they are
    taken to lie evenly; above the last bound, at it.

    Args:
        buckets: upper bound and how many were at most that, ascending; the last bound is infinite.
    """
    if not buckets or buckets[-1][1] <= 0:
        return None
    rank = share * buckets[-1][1]
    low = below = 0.0
    for bound, count in buckets:
        if count >= rank and count > below:
            return low if bound == float("inf") else low + (bound - low) * (rank - below) / (count - below)
        low, below = bound, count
    return low
