# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The nouns as bytes and JSON, the same way in the journal, in trajectory files and in exports.

Arrays are little-endian and exact: what is read back is bit-equal to what was written. Text is kept as it is, lone surrogates
included. Nothing here touches the disk.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from nemo_polar.errors import JournalError
from nemo_polar.types import (
    Image,
    LogProbs,
    Message,
    Part,
    Reasoning,
    Role,
    SamplingParams,
    Text,
    TokenIds,
    ToolCall,
    ToolResult,
    ToolSpec,
)

_DTYPES = ("<i4", "<f4", "|b1")
"""What a stored array may be: token ids and versions, log-probabilities, masks."""


def dumps(value: Any) -> str:
    """``value`` as compact JSON. Lone surrogates and integers over 64 bits, which orjson refuses, are written all the same.

    Raises:
        JournalError: something in ``value`` has no JSON form.
    """
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        pass
    try:
        return json.dumps(value, separators=(",", ":"))
    except (TypeError, ValueError) as exc:
        raise JournalError(f"not JSON: {exc}") from exc


def loads(text: str | bytes) -> Any:
    """The value that ``dumps`` wrote.

    Raises:
        JournalError: not JSON.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(text)
    except ValueError as exc:
        raise JournalError(f"not JSON: {exc}") from exc


# --- arrays -----------------------------------------------------------------------------------------------------------


def ids_to_bytes(ids: TokenIds) -> bytes:
    """int32[N] as 4N little-endian bytes."""
    return ids.astype("<i4", copy=False).tobytes()


def logprobs_to_bytes(logprobs: LogProbs) -> bytes:
    """float32[N] as 4N little-endian bytes."""
    return logprobs.astype("<f4", copy=False).tobytes()


def ids_from_bytes(data: bytes) -> TokenIds:
    """int32[N], read-only; the inverse of ``ids_to_bytes``."""
    return np.frombuffer(data, dtype="<i4").astype(np.int32, copy=False)


def logprobs_from_bytes(data: bytes) -> LogProbs:
    """float32[N], read-only; the inverse of ``logprobs_to_bytes``."""
    return np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)


def array_to_dict(array: npt.NDArray[Any]) -> dict[str, Any]:
    """An int32, float32 or bool array as ``{dtype, shape, data}``, the data base64 of its little-endian bytes."""
    packed = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    if packed.dtype.str not in _DTYPES:
        raise JournalError(f"an array of {array.dtype} has no stored form; expected int32, float32 or bool")
    data = base64.b64encode(packed.tobytes()).decode("ascii")
    return {"dtype": packed.dtype.str, "shape": list(packed.shape), "data": data}


def array_from_dict(value: Mapping[str, Any], dtype: str) -> npt.NDArray[Any]:
    """The inverse of ``array_to_dict``; ``dtype`` is the one expected.

    Raises:
        JournalError: another dtype, or bytes that do not fill the shape.
    """
    try:
        if value["dtype"] != dtype:
            raise JournalError(f"an array of {value['dtype']} where {dtype} is expected")
        array = np.frombuffer(base64.b64decode(value["data"], validate=True), dtype=dtype).reshape(value["shape"])
    except (KeyError, TypeError, ValueError) as exc:
        raise JournalError(f"not a stored array: {exc}") from exc
    return array.astype(array.dtype.newbyteorder("="), copy=False)


# --- messages ---------------------------------------------------------------------------------------------------------


def message_to_dict(message: Message) -> dict[str, Any]:
    """A message as plain JSON data; the order of parts is kept."""
    out: dict[str, Any] = {"role": message.role.value, "parts": [_part_to_dict(p) for p in message.parts]}
    if message.name is not None:
        out["name"] = message.name
    return out


def message_from_dict(value: Mapping[str, Any]) -> Message:
    """The inverse of ``message_to_dict``.

    Raises:
        JournalError: not a message.
    """
    try:
        return Message(Role(value["role"]), tuple(_part_from_dict(p) for p in value["parts"]), value.get("name"))
    except (KeyError, TypeError, ValueError) as exc:
        raise JournalError(f"not a stored message: {exc!r}") from exc


def _part_to_dict(part: Part) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Reasoning(text):
            return {"type": "reasoning", "text": text}
        case ToolCall(id_, name, arguments, malformed):
            return {"type": "tool_call", "id": id_, "name": name, "arguments": arguments, "malformed": malformed}
        case Image(url, media_type):
            return {"type": "image", "url": url, "media_type": media_type}
        case ToolResult(call_id, content, name, is_error):
            inner = [_part_to_dict(p) for p in content]
            return {"type": "tool_result", "call_id": call_id, "content": inner, "name": name, "is_error": is_error}


def _part_from_dict(value: Mapping[str, Any]) -> Part:
    match value["type"]:
        case "text":
            return Text(value["text"])
        case "reasoning":
            return Reasoning(value["text"])
        case "tool_call":
            return ToolCall(value["id"], value["name"], value["arguments"], value["malformed"])
        case "image":
            return Image(value["url"], value["media_type"])
        case "tool_result":
            content = tuple(p for p in map(_part_from_dict, value["content"]) if isinstance(p, Text | Image))
            return ToolResult(value["call_id"], content, value["name"], value["is_error"])
        case other:
            raise ValueError(f"unknown part type {other!r}")


# --- tools ------------------------------------------------------------------------------------------------------------


def tool_to_dict(tool: ToolSpec) -> dict[str, Any]:
    """A tool as plain JSON data."""
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters), "strict": tool.strict}


def tool_from_dict(value: Mapping[str, Any]) -> ToolSpec:
    """The inverse of ``tool_to_dict``.

    Raises:
        JournalError: not a tool.
    """
    try:
        return ToolSpec(value["name"], value["description"], value["parameters"], value["strict"])
    except (KeyError, TypeError) as exc:
        raise JournalError(f"not a stored tool: {exc!r}") from exc


# --- sampling parameters ----------------------------------------------------------------------------------------------


def sampling_to_dict(sampling: SamplingParams) -> dict[str, Any]:
    """Sampling parameters as plain JSON data."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "max_tokens": sampling.max_tokens,
        "stop": list(sampling.stop),
        "seed": sampling.seed,
    }


def sampling_from_dict(value: Mapping[str, Any]) -> SamplingParams:
    """The inverse of ``sampling_to_dict``.

    Raises:
        JournalError: not sampling parameters.
    """
    try:
        return SamplingParams(**{**value, "stop": tuple(value["stop"])})
    except (KeyError, TypeError) as exc:
        raise JournalError(f"not stored sampling parameters: {exc!r}") from exc
