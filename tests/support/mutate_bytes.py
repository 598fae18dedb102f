# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Mutations of the bytes of a request body, and of how it is sent; they know nothing of what the body says."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

Headers = tuple[tuple[str, str], ...]
BOMB_BYTES = 4 * 1024 * 1024
"""What a compressed bomb unpacks to; over the body limit of whoever is tested."""


@dataclass(frozen=True)
class Sent:
    """What goes over the wire."""

    body: bytes
    headers: Headers = (("Content-Type", "application/json"),)
    chunked: bool = False


# --- its bytes --------------------------------------------------------------------------------------------------------

ODD_BYTES = (
    *(b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x80"),  # no UTF-8
    *(b"\x00", b"\x1f", b"\r\n\r\n", b'"', b"\\", b"}"),
)


def _flip(rng: random.Random, body: bytes, other: bytes) -> bytes:
    out = bytearray(body)
    for _ in range(rng.choice((1, 2, 20)) if out else 0):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _truncate(rng: random.Random, body: bytes, other: bytes) -> bytes:
    return body[: rng.randint(0, len(body))]


def _insert(rng: random.Random, body: bytes, other: bytes) -> bytes:
    at = rng.randint(0, len(body))
    return body[:at] + rng.choice((*ODD_BYTES, rng.randbytes(20))) + body[at:]


def _cut_out(rng: random.Random, body: bytes, other: bytes) -> bytes:
    at = rng.randint(0, len(body))
    return body[:at] + body[at + rng.choice((1, 10, 200)) :]


def _splice(rng: random.Random, body: bytes, other: bytes) -> bytes:
    return body[: rng.randint(0, len(body))] + other[rng.randint(0, len(other)) :]


def _around(rng: random.Random, body: bytes, other: bytes) -> bytes:
    before, after = rng.choice(
        (
            (b"\xef\xbb\xbf", b""),
            (b" \n\t", b"\n"),
            (b"", b"\0"),
            (b"", other),
            (b"[", b"]"),
            (b"data: ", b"\n\n"),
            (b")]}',\n", b""),
        )
    )
    return before + body + after


def _recode(rng: random.Random, body: bytes, other: bytes) -> bytes:
    text = body.decode("utf-8", "replace")
    return text.encode(rng.choice(("utf-16", "utf-32", "utf-7", "latin-1")), "replace")


def _noise(rng: random.Random, body: bytes, other: bytes) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 100, 5000)))


BYTE_MUTATORS: dict[str, Callable[[random.Random, bytes, bytes], bytes]] = {
    "flip": _flip,
    "truncate": _truncate,
    "insert": _insert,
    "cut out": _cut_out,
    "splice": _splice,
    "around": _around,
    "recode": _recode,
    "noise": _noise,
}


# --- how it is sent ---------------------------------------------------------------------------------------------------


def _zstd_bomb() -> bytes:
    """A frame of run-length blocks: 4 bytes for each 128 KiB."""
    block = (128 * 1024) << 3 | 1 << 1
    return b"\x28\xb5\x2f\xfd\x00\x58" + (block.to_bytes(3, "little") + b" ") * (BOMB_BYTES >> 17) + b"\x01\x00\x00"


def _encoded(sent: Sent, encoding: str, body: bytes) -> Sent:
    return replace(sent, body=body, headers=(*sent.headers, ("Content-Encoding", encoding)))


def _compress(rng: random.Random, sent: Sent) -> Sent:
    """Compressed, and said so: a request like any other."""
    if rng.random() < 0.5:
        return _encoded(sent, "gzip", gzip.compress(sent.body, 1, mtime=0))
    return _encoded(sent, "deflate", zlib.compress(sent.body, 1))


def _compress_badly(rng: random.Random, sent: Sent) -> Sent:
    packed = gzip.compress(sent.body, 1, mtime=0)
    body = rng.choice((packed[:-8], packed[: len(packed) // 2], packed + b"tail", packed * 2, packed[:10] + b"\xff" * 9, b""))
    return _encoded(sent, rng.choice(("gzip", "deflate", "GZIP")), body)


def _wrong_encoding(rng: random.Random, sent: Sent) -> Sent:
    names = ("gzip", "deflate", "br", "zstd", "identity", "compress", "gzip, gzip", "x-" + "y" * 50, "")
    return _encoded(sent, rng.choice(names), sent.body)


def _bomb(rng: random.Random, sent: Sent) -> Sent:
    kind = rng.randrange(3)
    if kind == 2:
        return _encoded(sent, "zstd", _zstd_bomb())
    flat = b" " * BOMB_BYTES + sent.body
    return (
        _encoded(sent, "gzip", gzip.compress(flat, 1, mtime=0)) if kind else _encoded(sent, "deflate", zlib.compress(flat, 1))
    )


def _content_type(rng: random.Random, sent: Sent) -> Sent:
    kinds = ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "", "application/json;" * 20)
    kinds += ("application/json; charset=utf-16", "application/json; charset=nope", "\xff")
    return replace(sent, headers=(("Content-Type", rng.choice(kinds)), *sent.headers[1:]))


def _chunked(rng: random.Random, sent: Sent) -> Sent:
    return replace(sent, chunked=True)


def _retry_header(rng: random.Random, sent: Sent) -> Sent:
    counts = ("0", "1", "99999999999", "-1", "one", "")
    return replace(sent, headers=(*sent.headers, ("X-Stainless-Retry-Count", rng.choice(counts))))


SEND_MUTATORS: dict[str, Callable[[random.Random, Sent], Sent]] = {
    "compress": _compress,
    "compress badly": _compress_badly,
    "wrong encoding": _wrong_encoding,
    "bomb": _bomb,
    "content type": _content_type,
    "chunked": _chunked,
    "retry header": _retry_header,
}
