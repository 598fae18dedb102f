# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics for Prometheus, put together when they are asked for, from what the proxy's parts count anyway.

Every label has few values whatever harnesses send, and none holds a secret. ``docs/observability.md`` lists them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from nemo_polar.capture.histogram import Histogram
from nemo_polar.engines.replicas import ReplicaSet
from nemo_polar.logs import Lost, redact

if TYPE_CHECKING:
    from nemo_polar.capture.proxy import CaptureProxy

_COUNTERS = {
    "calls": ("polar_samples", "Replies that were begun."),
    "replies": ("polar_replies", "Replies that were drawn to their end."),
    "joined": ("polar_joined", "Calls given a reply that was under way or on record."),
    "replayed": ("polar_replayed", "Of these, calls given a finished reply from the record."),
    "retries": ("polar_engine_retries", "Engine calls made again after the engine failed."),
    "aborted": ("polar_samples_aborted", "Engine calls cut short whose tokens were recorded."),
    "continued": ("polar_samples_continued", "Engine calls that went on from the tokens of one cut short."),
    "bridged": ("polar_turns_bridged", "Turns whose prompt extends a recorded line."),
    "sampled_tokens": ("polar_sampled_tokens", "Tokens sampled and recorded."),
    "prompt_tokens": ("polar_prompt_tokens", "Tokens given to the engine, in all engine calls that drew something."),
    "malformed_calls": ("polar_malformed_tool_calls", "Sampled tool calls that are not well-formed."),
    "ambiguous": ("polar_ambiguous", "Requests that fit several recorded lines alike."),
    "engine_mismatch": ("polar_engine_mismatches", "Prompts that a chat-only engine did not extend as recorded: forked."),
    "rewrites": ("polar_rewrites", "Declared rewrites applied to requests."),
}
"""Counters of sessions, without a label."""
_LABELLED = {
    "forks:": ("polar_turns_forked", "Turns that begin a line of their own.", "reason"),
    "engine:": ("polar_engine_failures", "Engine calls that failed, those made again included.", "kind"),
    "failed_": ("polar_failed_replies", "Replies that ended without success.", "reason"),
    "dropped:": ("polar_dropped_features", "Features of requests left out by rule.", "feature"),
}
"""Counters of sessions by how their names begin; what follows is the label."""


class Metrics:
    """Of one proxy, in a registry of its own: several proxies may live in a process."""

    def __init__(self, proxy: CaptureProxy) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(ProxyCollector(proxy))
        ProcessCollector(registry=self._registry)

    def text(self, accept: str) -> tuple[str, bytes]:
        """Content type and body, in the format that an ``Accept`` header prefers."""
        encode, content_type = choose_encoder(accept)
        return content_type, encode(self._registry)


class ProxyCollector(Collector):
    """Reads a running proxy, in its event loop."""

    def __init__(self, proxy: CaptureProxy) -> None:
        self._proxy = proxy

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._sessions()
        yield from self._journal()
        yield from self._engine()
        yield from self._memory()

    def _requests(self) -> Iterator[Metric]:
        proxy, meter = self._proxy, self._proxy.meter
        requests = CounterMetricFamily(
            "polar_requests", "HTTP requests answered.", labels=("dialect", "route", "stream", "code")
        )
        for (dialect, route, stream, code), count in meter.requests.items():
            requests.add_metric((dialect, route, _flag(stream), str(code)), count)
        yield requests
        seconds = HistogramMetricFamily(
            "polar_request_seconds", "Successful calls, from header to last byte.", labels=("dialect", "stream")
        )
        for (dialect, stream), histogram in meter.request_seconds.items():
            seconds.add_metric((dialect, _flag(stream)), histogram.buckets(), histogram.sum)
        yield seconds
        yield _histogram("polar_added_seconds", "From a request's last byte until its sample may begin.", meter.added_seconds)
        yield _histogram("polar_event_loop_lag_seconds", "How late the event loop was, ten times a second.", meter.lag_seconds)
        yield _gauge("polar_calls_in_flight", "Replies being drawn.", proxy.calls_in_flight)
        yield _gauge("polar_streams_open", "Streamed answers under way.", proxy.limits.streams)
        yield _gauge("polar_connections_open", "Connections, over all listeners.", proxy.limits.connections)
        yield _labelled("polar_refused", "How often a bound was reached.", "limit", proxy.limits.refused)
        quoted = getattr(proxy.codec, "quoted_specials", 0)
        yield _counter("polar_quoted_special_tokens", "Special tokens in text, made ordinary text.", quoted)

    def _sessions(self) -> Iterator[Metric]:
        sessions = self._proxy.sessions
        yield _gauge("polar_sessions_open", "Open sessions.", len(sessions))
        yield _counter("polar_sessions_opened", "Sessions opened.", sessions.totals.opened)
        yield _labelled("polar_sessions_closed", "Sessions that ended, by how.", "status", sessions.totals.closed)
        total = sessions.totals.sum(session.counters for session in sessions)
        for key, (name, help_) in _COUNTERS.items():
            yield _counter(name, help_, total[key])
        for prefix, (name, help_, label) in _LABELLED.items():
            found = {key.removeprefix(prefix): count for key, count in total.items() if key.startswith(prefix)}
            yield _labelled(name, help_, label, found)

    def _journal(self) -> Iterator[Metric]:
        journal = self._proxy.journal
        yield _gauge("polar_journal_healthy", "1 when the journal can be written.", journal.healthy)
        yield _gauge("polar_journal_queue_rows", "Rows that wait to be written.", journal.queued)
        yield _counter("polar_journal_errors", "Transactions that the disk refused.", journal.errors)
        yield _histogram("polar_journal_batch_rows", "Rows of a transaction.", journal.batch_rows)
        yield _histogram("polar_journal_commit_seconds", "How long a transaction took.", journal.commit_seconds)

    def _engine(self) -> Iterator[Metric]:
        proxy = self._proxy
        info = GaugeMetricFamily("polar_info", "What is served; always 1.", labels=("model", "codec"))
        info.add_metric((redact(proxy.info.model), proxy.codec.name), 1)
        yield info
        yield _gauge("polar_weights_version", "Weights that replies are drawn under.", proxy.gate.weights_version)
        yield _gauge("polar_paused", "1 while weights are replaced.", not proxy.gate.open.is_set())
        yield _histogram(
            "polar_engine_first_token_seconds", "From asking the engine to its first token.", proxy.meter.first_token_seconds
        )
        if not isinstance(proxy.engine, ReplicaSet):
            return
        replicas = proxy.engine.status()
        names = [redact(replica.url) for replica in replicas]
        values: dict[str, tuple[str, list[float | None]]] = {
            "polar_replica_up": ("1 when the replica is given samples.", [r.healthy for r in replicas]),
            "polar_replica_calls_in_flight": ("Engine calls open on it.", [r.in_flight for r in replicas]),
            "polar_replica_sessions": ("Sessions whose calls go to it.", [r.sessions for r in replicas]),
            "polar_replica_weights_version": ("Weights it serves, where known.", [r.weights_version for r in replicas]),
        }
        for name, (help_, column) in values.items():
            family = GaugeMetricFamily(name, help_, labels=("replica",))
            for replica, value in zip(names, column, strict=True):
                if value is not None:
                    family.add_metric((replica,), value)
            yield family

    def _memory(self) -> Iterator[Metric]:
        proxy = self._proxy
        yield _counter("polar_root_cache_hits", "First prompts that did not have to be rendered.", proxy.roots.hits)
        yield _gauge("polar_root_cache_bytes", "First prompts kept as ids.", proxy.roots.bytes)
        yield _gauge("polar_seen_request_bytes", "Request text kept so that it need not be read again.", proxy.seen.bytes)
        yield _counter("polar_log_lines_lost", "Log lines that could not be written, in this process.", Lost.lines)


def _counter(name: str, help_: str, value: float) -> Metric:
    return CounterMetricFamily(name, help_, value=value)


def _gauge(name: str, help_: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_, value=value)


def _labelled(name: str, help_: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, help_, labels=(label,))
    for value, count in sorted(counts.items()):
        family.add_metric((value,), count)
    return family


def _histogram(name: str, help_: str, histogram: Histogram) -> Metric:
    return HistogramMetricFamily(name, help_, buckets=histogram.buckets(), sum_value=histogram.sum)


def _flag(value: bool) -> str:
    return "true" if value else "false"
