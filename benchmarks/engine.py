# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""An inference engine that answers at once, in vLLM's shape: ``python -m benchmarks.engine --replies FILE``.

``/inference/v1/generate`` takes ids, ``/v1/chat/completions`` messages; both answer with one of the canned replies whose length
is the request's ``max_tokens``, from bytes that were made beforehand, and both can stream, one event a token. It reads of a
request what it must and no more, so that what is measured is the proxy in front of it.

``POST /bench/gap`` (a number, milliseconds) sets the time between the tokens of a stream. At 0 a whole stream is one write.
Above, all streams under way get their next token at the same tick, as in an engine that samples in batches.
``GET /bench/counts`` tells how many requests each route has had.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import cast

import orjson
import uvloop

GENERATE = b"/inference/v1/generate"
CHAT = b"/v1/chat/completions"
MODEL = "bench"
MAX_CONTEXT = 131_072

_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.I)
_MAX_TOKENS = re.compile(rb'"max_tokens":\s*(\d+)')
_REQUEST_ID = re.compile(rb'"request_id":\s*"([^"]*)"')
_STREAM = re.compile(rb'"stream":\s*true')
_WANTS_IDS = re.compile(rb'"return_token_ids":\s*true')
_WANTS_LOGPROBS = re.compile(rb'"logprobs":\s*true')
_JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
_LOGPROB = -0.5
_PROMPT_IDS = b",".join(b"%d" % (10_000 + at % 89_999) for at in range(MAX_CONTEXT))
"""Six bytes an id with its comma."""
_BYTES_PER_TOKEN = 4


class Reply:
    """The bytes of one canned reply in each shape. ``{id}`` below is the request's, set in by the caller."""

    def __init__(self, ids: list[int], texts: list[str]) -> None:
        last = len(ids) - 1
        text = "".join(texts)
        generated = [_generated(i, at == last) for at, i in enumerate(ids)]
        self.whole_ids = orjson.dumps(_choice_of_ids(ids, finish="stop"))
        self.events_ids = [orjson.dumps(choice) for choice in generated]
        self.whole_chat: dict[tuple[bool, bool], bytes] = {}
        self.events_chat: dict[tuple[bool, bool], list[bytes]] = {}
        for wants in ((False, False), (False, True), (True, False), (True, True)):
            with_ids, with_logprobs = wants
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
                "stop_reason": None,
                "logprobs": {"content": [_entry(i, t) for i, t in zip(ids, texts, strict=True)]} if with_logprobs else None,
                **({"token_ids": ids} if with_ids else {}),
            }
            self.whole_chat[wants] = orjson.dumps(choice)
            self.events_chat[wants] = [
                orjson.dumps(
                    {
                        "index": 0,
                        "delta": {"content": t},
                        "finish_reason": "stop" if at == last else None,
                        "logprobs": {"content": [_entry(i, t)]} if with_logprobs else None,
                        **({"token_ids": [i]} if with_ids else {}),
                    }
                )
                for at, (i, t) in enumerate(zip(ids, texts, strict=True))
            ]


def _entry(token: int, text: str) -> dict[str, object]:
    return {"token": text, "logprob": _LOGPROB, "bytes": list(text.encode()), "top_logprobs": []}


def _choice_of_ids(ids: list[int], finish: str | None) -> dict[str, object]:
    entries = [
        {
            "token_id": i,
            "logprob": _LOGPROB,
            "rank": None,
            "top_logprobs": [{"token_id": i, "logprob": _LOGPROB, "rank": None}],
        }
        for i in ids
    ]
    return {
        "index": 0,
        "finish_reason": finish,
        "stop_reason": None,
        "token_ids": ids,
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": None if finish is None else [{"version": "0", "start": 0, "end": len(ids)}],
        "logprobs": {"content": entries},
    }


def _generated(token: int, last: bool) -> dict[str, object]:
    return _choice_of_ids([token], finish="stop" if last else None)


def _chunk(data: bytes) -> bytes:
    """One piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Engine:
    """The replies, the clock of the streams and the counts."""

    def __init__(self, replies: dict[int, list[Reply]]) -> None:
        self._replies = {length: cycle(pool) for length, pool in replies.items()}
        self._gap = 0.0
        self._streams: dict[asyncio.Transport, list[bytes]] = {}
        """What is still to be sent, the next event last."""
        self._ticking: asyncio.TimerHandle | None = None
        self._tick_at = 0.0
        self.counts: Counter[str] = Counter()

    # --- requests -----------------------------------------------------------------------------------------------------

    def answer(self, transport: asyncio.Transport, path: bytes, body: bytes) -> None:
        """Answer one request."""
        self.counts[path.decode()] += 1
        if path in (GENERATE, CHAT):
            self._sample(transport, path, body)
        elif path == b"/health":
            transport.write(_JSON_HEAD % 0)
        elif path == b"/v1/models":
            card = {"id": MODEL, "object": "model", "owned_by": "vllm", "parent": None, "max_model_len": MAX_CONTEXT}
            _write_json(transport, {"object": "list", "data": [card]})
        elif path == b"/bench/gap":
            self._gap = float(body) / 1000
            _write_json(transport, {"gap_ms": float(body)})
        elif path == b"/bench/counts":
            _write_json(transport, self.counts)
        else:
            transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")

    def _sample(self, transport: asyncio.Transport, path: bytes, body: bytes) -> None:
        asked = _MAX_TOKENS.search(body)
        replies = self._replies.get(int(asked[1])) if asked else None
        if replies is None:
            problem = b'{"error":{"message":"max_tokens: no reply of this length","code":400}}'
            transport.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: %d\r\n\r\n%b" % (len(problem), problem))
            return
        reply = next(replies)
        stream = _STREAM.search(body) is not None
        if path == GENERATE:
            found = _REQUEST_ID.search(body)
            head = b'{"request_id":"generate-tokens-' + (found[1] if found else b"") + b'",'
            if stream:
                self._stream(transport, _id_events(head, reply))
            else:
                _write_bytes(transport, head + b'"model":"bench","choices":[' + reply.whole_ids + b"]}")
            return
        wants = (_WANTS_IDS.search(body) is not None, _WANTS_LOGPROBS.search(body) is not None)
        tokens = len(body) // _BYTES_PER_TOKEN
        prompt = b',"prompt_token_ids":[' + _PROMPT_IDS[: 6 * tokens - 1] + b"]" if wants[0] else b""
        if stream:
            self._stream(transport, _chat_events(reply.events_chat[wants], prompt))
            return
        usage = b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}' % (
            tokens,
            int(asked[1]) if asked else 0,
            tokens,
        )
        head = b'{"id":"chatcmpl-bench","object":"chat.completion","created":1,"model":"bench",'
        _write_bytes(transport, head + usage + prompt + b',"choices":[' + reply.whole_chat[wants] + b"]}")

    # --- streams ------------------------------------------------------------------------------------------------------

    def _stream(self, transport: asyncio.Transport, events: Iterator[bytes]) -> None:
        if not self._gap:
            transport.write(_STREAM_HEAD + b"".join(map(_chunk, events)) + _DONE)
            return
        transport.write(_STREAM_HEAD)
        self._streams[transport] = list(events)[::-1]
        if self._ticking is None:
            loop = asyncio.get_running_loop()
            self._tick_at = loop.time() + self._gap
            self._ticking = loop.call_at(self._tick_at, self._tick)

    def _tick(self) -> None:
        """The next token of every stream."""
        for transport, events in list(self._streams.items()):
            event = _chunk(events.pop())
            if events:
                transport.write(event)
            else:
                del self._streams[transport]
                transport.write(event + _DONE)
        loop = asyncio.get_running_loop()
        if self._streams:
            self._tick_at = max(self._tick_at + self._gap, loop.time())
            self._ticking = loop.call_at(self._tick_at, self._tick)
        else:
            self._ticking = None

    def gone(self, transport: asyncio.Transport) -> None:
        """The client of a stream has left."""
        self._streams.pop(transport, None)


def _id_events(head: bytes, reply: Reply) -> Iterator[bytes]:
    head = b"data: " + head + b'"usage":null,"output_mode":"tokens","choices":['
    for choice in reply.events_ids:
        yield head + choice + b"]}\n\n"


def _chat_events(choices: list[bytes], prompt: bytes) -> Iterator[bytes]:
    head = b'data: {"id":"chatcmpl-bench","object":"chat.completion.chunk","created":1,"model":"bench"'
    first = b',"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null,"logprobs":null}]}\n\n'
    yield head + prompt + first
    for choice in choices:
        yield head + b',"choices":[' + choice + b"]}\n\n"


def _write_bytes(transport: asyncio.Transport, body: bytes) -> None:
    transport.write(_JSON_HEAD % len(body) + body)


def _write_json(transport: asyncio.Transport, value: object) -> None:
    _write_bytes(transport, orjson.dumps(value))


class Connection(asyncio.Protocol):
    """One keep-alive HTTP/1.1 connection, one request at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._transport: asyncio.Transport
        self._pieces: list[bytes] = []
        self._size = 0
        self._need = 0
        """Bytes of the request under way, head included; 0 until its head is whole."""
        self._body_at = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._engine.gone(self._transport)

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        if not self._need:
            head = b"".join(self._pieces)
            self._pieces = [head]
            end = head.find(b"\r\n\r\n")
            if end < 0:
                return
            length = _LENGTH.search(head, 0, end + 2)
            self._body_at = end + 4
            self._need = self._body_at + (int(length[1]) if length else 0)
        if self._size < self._need:
            return
        request = b"".join(self._pieces)
        body = request[self._body_at : self._need]
        rest = request[self._need :]
        self._pieces, self._size, self._need = [], 0, 0
        self._engine.answer(self._transport, request.split(b" ", 2)[1], body)
        if rest:
            self.data_received(rest)


def load_replies(path: Path) -> dict[int, list[Reply]]:
    """What ``texts.canned_replies`` wrote: by length, a list of objects with ``ids`` and ``texts``."""
    raw = orjson.loads(path.read_bytes())
    return {int(length): [Reply(r["ids"], r["texts"]) for r in pool] for length, pool in raw.items()}


async def serve(engine: Engine, say: Callable[[str], None]) -> None:
    """Serve on a free port of loopback until SIGTERM; ``say`` is given the URL as JSON."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = await loop.create_server(lambda: Connection(engine), "127.0.0.1", 0, backlog=1024)
    say(orjson.dumps({"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}).decode())
    await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="An inference engine that answers at once, for benchmarks.")
    parser.add_argument("--replies", type=Path, required=True, help="JSON: length in tokens -> list of {ids, texts}")
    args = parser.parse_args()
    uvloop.run(serve(Engine(load_replies(args.replies)), lambda line: print(line, flush=True)))


if __name__ == "__main__":
    sys.exit(main())
