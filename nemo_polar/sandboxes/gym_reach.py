# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""How a provider's sandbox reaches the proxy: by an address that it is told, by a port that the provider forwards, or because
it is on this host's network. Which of them holds is settled at the start; a sandbox that cannot reach the proxy never runs a
harness, or what is a fault of the set-up would be scored as the policy's.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import Awaitable, Callable
from shlex import quote
from urllib.parse import urlsplit

from nemo_polar.errors import SandboxError
from nemo_polar.sandboxes.base import ExecResult
from nemo_polar.sandboxes.gym_provider import GymBox

_LOG = logging.getLogger(__name__)
_UNKNOWN = 9
_CONNECT_SECONDS = 10
_POLL_SECONDS = 0.2

_CONNECT = f"""
if command -v python3 >/dev/null 2>&1; then
  exec python3 -c 'import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), {_CONNECT_SECONDS})' "$1" "$2"
elif command -v curl >/dev/null 2>&1; then
  exec curl -s -k -o /dev/null --noproxy '*' --max-time {_CONNECT_SECONDS} "$3"
elif command -v bash >/dev/null 2>&1; then
  exec bash -c ': < "/dev/tcp/$1/$2"' bash "$1" "$2"
elif command -v node >/dev/null 2>&1; then
  exec node -e 'const s = require("net").connect(+process.argv[2], process.argv[1], () => process.exit(0))
    s.on("error", () => process.exit(1))' "$1" "$2"
fi
exit {_UNKNOWN}
"""

Exec = Callable[[list[str], float], Awaitable[ExecResult]]
"""Runs a command in the sandbox, for at most so many seconds."""


class Reach:
    """The way from one sandbox to the proxy, held open until ``close``."""

    def __init__(self, box: GymBox) -> None:
        self._box = box
        self._forwarding: asyncio.Task[None] | None = None

    async def find(self, own_url: str | None, *, same_network: bool, stage: str, run: Exec) -> str:
        """The proxy's URL as the sandbox must call it; proved by a connection, if there is a program inside that can make one.

        Args:
            own_url: the proxy's TCP address on this host. same_network: the sandbox has this host's network.
            stage: prefix of paths inside that are ours.

        Raises:
            SandboxError: there is no way, or it leads nowhere; the message says what to set.
        """
        options = self._box.options
        own = urlsplit(own_url or "")
        if options.proxy_url is not None:
            if "{port}" in options.proxy_url and own.port is None:
                raise SandboxError("sandbox option proxy_url: the proxy listens on no port that {port} could stand for")
            url = options.proxy_url.replace("{port}", str(own.port)).rstrip("/")
        elif own.port is None:
            raise SandboxError("the gym sandbox needs a proxy with a TCP address")
        elif options.forward_to is not None:
            await self._forward(options.forward_to, own.port, f"{stage}/forwarding")
            url = f"http://127.0.0.1:{own.port}"
        elif same_network:
            host = "127.0.0.1" if own.hostname in ("0.0.0.0", "::") else own.hostname
            url = f"{own.scheme}://{f'[{host}]' if ':' in str(host) else host}:{own.port}"
        else:
            raise SandboxError(
                f"a sandbox of Gym's provider {options.provider!r} has a network of its own, from which {own_url} cannot be "
                "reached. Set sandbox.options.proxy_url to an address of the proxy that it can reach (the proxy listens beyond "
                "loopback only with capture.host set, e.g. to 0.0.0.0), or, if the provider forwards ports, "
                "sandbox.options.forward_to to this host's address"
            )
        await self._prove(url, run)
        return url

    async def _forward(self, address: str, port: int, ready: str) -> None:
        provider, name = self._box.provider, self._box.options.provider
        forward = getattr(provider, "forward_ports", None)
        if forward is None:
            raise SandboxError(f"sandbox option forward_to: Gym's provider {name!r} forwards no ports; set proxy_url")
        try:
            ipaddress.ip_address(address)
            getattr(provider, "validate_port_forwarding", lambda: None)()
        except Exception as exc:  # the provider's own objection, whatever its type
            raise SandboxError(f"sandbox option forward_to: {exc}") from exc
        self._forwarding = asyncio.ensure_future(forward(self._box.handle, address, (port,), ready_file=ready))
        try:
            async with asyncio.timeout(self._box.options.transfer_seconds):
                while (await self._box.control(f"[ -s {quote(ready)} ]", ok=(0, 1))).code != 0:
                    self.check()
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise SandboxError(f"Gym's provider {name!r} did not begin to forward port {port} in time") from None
        self.check()

    def check(self) -> None:
        """Raises SandboxError when a port was forwarded and is so no longer: what a command met after that is not its fault."""
        if self._forwarding is not None and self._forwarding.done():
            why = None if self._forwarding.cancelled() else self._forwarding.exception()
            raise SandboxError(f"Gym's provider {self._box.options.provider!r} stopped forwarding the proxy's port: {why}")

    async def _prove(self, url: str, run: Exec) -> None:
        parts = urlsplit(url)
        port = parts.port or {"https": 443}.get(parts.scheme, 80)
        tried = await run(["/bin/sh", "-c", _CONNECT, "connect", str(parts.hostname), str(port), url], _CONNECT_SECONDS + 10)
        if tried.exit_code == _UNKNOWN:
            _LOG.warning("no program in the sandbox can try %s: an unreachable proxy would look like a failing harness", url)
        elif tried.exit_code != 0 or tried.timed_out:
            said = tried.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no answer"]
            raise SandboxError(
                f"the proxy cannot be reached at {url} from a sandbox of Gym's provider {self._box.options.provider!r}: "
                f"{said[0]}. It listens beyond loopback only with capture.host set"
            )

    async def close(self) -> None:
        """End the forwarding."""
        if self._forwarding is not None:
            self._forwarding.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._box.options.transfer_seconds):
                    await asyncio.wait([self._forwarding])
