# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What is measured while a call goes by: the few things that no counter elsewhere tells when metrics are asked for.

Each costs well under a microsecond, and none can fail. The same object tells the logs whose call it is.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import perf_counter

from aiohttp import web

from nemo_polar.capture.histogram import Histogram
from nemo_polar.logs import Subject, subject
from nemo_polar.types import Sample

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
_LAG_SECONDS = 0.1
_CLIENT_GONE = 499


class Meter:
    """One a proxy. Only its event loop writes."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, bool, int]] = Counter()
        """By dialect, kind of route, streamed, status (499: the client had gone)."""
        self.request_seconds: defaultdict[tuple[str, bool], Histogram] = defaultdict(Histogram)
        """Calls answered with 200, from header to last byte, by dialect and streamed."""
        self.added_seconds = Histogram()
        """From a request's last byte until its sample may begin: parsing, placing, rendering, waiting for the loop."""
        self.first_token_seconds = Histogram()
        """From asking the engine to its first token."""
        self.lag_seconds = Histogram()
        """How much later than asked for the event loop woke a sleeper."""

    def counted(self, handle: Handler) -> Handler:
        """``handle``, with each request counted, and with its records in the log saying whose they are."""

        async def counted(request: web.BaseRequest) -> web.StreamResponse:
            seen = Observed(meter=self)
            token = subject.set(seen)
            status = _CLIENT_GONE  # if nothing is returned, the handler was cancelled
            try:
                response = await handle(request)
                status = response.status
                return response
            finally:
                subject.reset(token)
                self.requests[seen.dialect, seen.route, seen.stream, status] += 1
                if seen.route == "generate" and status == 200:
                    self.request_seconds[seen.dialect, seen.stream].observe(perf_counter() - seen.began)

        return counted

    async def watch_lag(self) -> None:
        """Sample the event loop's lag until cancelled."""
        while True:
            began = perf_counter()
            await asyncio.sleep(_LAG_SECONDS)
            self.lag_seconds.observe(perf_counter() - began - _LAG_SECONDS)


@dataclass(slots=True, kw_only=True)
class Observed(Subject):
    """One request on its way. The sample that it begins goes on with it."""

    meter: Meter
    dialect: str = "none"
    route: str = "none"
    stream: bool = False
    began: float = field(default_factory=perf_counter)
    """In ``perf_counter`` seconds, as are the others."""
    read_at: float | None = None
    """When its last byte was there."""

    def asks(self) -> None:
        """The sample may begin."""
        if self.read_at is not None:
            self.meter.added_seconds.observe(perf_counter() - self.read_at)

    def drew(self, sample: Sample) -> None:
        """An engine call has ended, with at least one token."""
        if sample.first_token_at:
            self.meter.first_token_seconds.observe(sample.first_token_at - sample.started_at)


def observed() -> Observed:
    """The request that is being answered; outside of one, something that is thrown away."""
    found = subject.get()
    return found if isinstance(found, Observed) else Observed(meter=Meter())
