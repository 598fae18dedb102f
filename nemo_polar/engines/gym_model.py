# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Client of NeMo Gym's stock model server (``vllm_model``, Gym 0.4 and 0.7): the checked fallback of the Gym route.

The server forwards messages to the chat API of a vLLM, which renders them. It takes no ids and keeps no prefix, so a harness's
next call extends the recorded ids only where that rendering happens to: the proxy compares, and forks where it does not.
Trained tokens stay exact, as what is recorded is what the engine says it used; conversations may break into more traces.

- The server needs ``return_token_id_information: true``. Left alone it takes the prompt's ids from a second rendering (POST
  /tokenize), which need not be what was sampled from. This client asks vLLM for the real ones, through the ``extra_body`` that
  Gym reads from a request's ``metadata``; where the answer has both, the real ones count, and differences are counted here.
- Through ``metadata`` go, too, what Gym's own schema has no field for: top-k, min-p, the repetition penalty, stop ids, the
  request's id.
- ``connect`` proves that temperature is followed and that log-probabilities are those after it (``probe_hot``), which top-k and
  top-p are then, too: vLLM has one switch for both. Gym's ``sampling_overrides`` (0.7) can pin what no request changes back; a
  temperature, a top-k or a narrow top-p among them is noticed, a penalty is not.
- A context overflow is answered by the server as an empty reply with finish reason ``length``; it becomes the error it was.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import orjson

from nemo_polar.engines.base import Chunk, EngineInfo, GenerateRequest
from nemo_polar.engines.chat_body import chat_body
from nemo_polar.engines.chat_engine import CHAT, ChatEngine
from nemo_polar.engines.http_client import answer_error, encode, typed_errors
from nemo_polar.engines.probe_hot import HOT, TOKENS, judge
from nemo_polar.errors import ConfigError, EngineError, EngineOverflow, EngineProtocol, EngineUnavailable
from nemo_polar.types import FinishReason, ModelCall, SamplingParams

log = logging.getLogger("nemo_polar.engines")

_SESSIONS = 4096
"""Gym's cookies kept, one a session; the session longest unused goes first."""
_INNER_STATUS = re.compile(r'\\*"code\\*"\s*:\s*(4\d\d)')
"""What vLLM answered, quoted in Gym's own HTTP 500."""
_PROBES = 4


class GymModelEngine(ChatEngine):
    """``url``: of Gym's model server. ``model`` is a name for reports: the server asks vLLM for the one in its own config.

    ``max_context``: tokens, as vLLM was started with (``--max-model-len``); the server has no way to tell. ``probe`` False
    trusts the log-probabilities unproven, which a vLLM that pins its sampling (NeMo RL's) needs. ``template_options`` go to the
    chat template, as in ``policy.codec.template_options``. ``developer_as_system``: most templates drop a developer message.

    ``connect_timeout``: seconds to open a connection; ``idle_timeout``: seconds for a whole answer to come, as nothing is
    streamed, and as Gym tries again by itself when vLLM fails.

    Raises:
        ConfigError: no ``max_context``.
    """

    name = "gym_model"
    remedy = (
        "Gym's model server must be vllm_model with return_token_id_information: true "
        "(++policy_model.responses_api_models.vllm_model.return_token_id_information=true)"
    )

    def __init__(
        self,
        url: str,
        model: str = "policy",
        *,
        max_context: int | None = None,
        template_options: Mapping[str, Any] | None = None,
        developer_as_system: bool = True,
        probe: bool = True,
        connect_timeout: float = 10.0,
        idle_timeout: float = 1800.0,
        api_key: str | None = None,
    ):
        if max_context is None:
            raise ConfigError(
                "max_context: Gym's model server does not tell its context length; set it to that of the vLLM behind it "
                "(--max-model-len), in tokens"
            )
        super().__init__(
            url,
            model,
            max_context=max_context,
            connect_timeout=connect_timeout,
            idle_timeout=idle_timeout,
            api_key=api_key,
        )
        self._template_options = dict(template_options or {})
        self._developer_as_system = developer_as_system
        self._probe_wanted = probe
        self._cookies: OrderedDict[str, str] = OrderedDict()
        self.second_renderings = 0
        """Answers in which /tokenize gave other ids than the prompt really had."""

    # --- life -------------------------------------------------------------------------------------------------------

    async def connect(self) -> EngineInfo:
        """See ``Engine.connect``."""
        if self._probe_wanted:
            await self._prove()
        else:
            await self.probe(SamplingParams())
        return self.info

    async def _prove(self) -> None:
        """Raise unless log-probabilities are those of the sampling distribution."""
        plain: list[float] = []
        hot: list[float] = []
        verdict = "undecided"
        for number in range(_PROBES):
            words = f"Write anything at all, {number + 1} times."
            plain += (await self.probe(SamplingParams(), max_tokens=TOKENS, words=words)).logprobs.tolist()
            try:
                drawn = await self.probe(SamplingParams(temperature=HOT), max_tokens=TOKENS, words=words)
            except EngineError as exc:
                raise EngineProtocol(
                    f"the engine behind {self._http.url} answers at temperature 1 and refuses another, so its "
                    f"log-probabilities cannot be proven: {exc}. If it pins its sampling on purpose, as NeMo RL's does, set "
                    "the engine's option probe to false"
                ) from exc
            hot += drawn.logprobs.tolist()
            verdict = judge(plain, hot)
            if verdict != "undecided":
                break
        if verdict != "processed":
            found = {
                "raw": "returns log-probabilities from before temperature and truncation, and these cannot be trained on; "
                "start vLLM with --logprobs-mode processed_logprobs",
                "held": "draws at another temperature than it is asked for, or from a few likely tokens only; look at "
                "sampling_overrides and extra_body in the config of Gym's model server, and start vLLM with "
                "--generation-config vllm",
            }.get(verdict, "returns log-probabilities that could not be told apart; the option probe: false trusts them")
            raise EngineProtocol(f"the engine behind {self._http.url} {found}")

    # --- sampling ---------------------------------------------------------------------------------------------------

    def _body(self, request: GenerateRequest, call: ModelCall) -> dict[str, Any]:
        sampling = request.sampling
        extra: dict[str, Any] = {"return_token_ids": True, "request_id": request.request_id, "top_k": sampling.top_k or -1}
        if request.stop_token_ids:
            extra["stop_token_ids"] = list(request.stop_token_ids)
        if sampling.min_p:
            extra["min_p"] = sampling.min_p
        if sampling.repetition_penalty != 1.0:
            extra["repetition_penalty"] = sampling.repetition_penalty
        metadata = {"extra_body": orjson.dumps(extra).decode()}
        if self._template_options:
            metadata["chat_template_kwargs"] = orjson.dumps(self._template_options).decode()
        body: dict[str, Any] = {
            "model": self._model,
            **self._messages(call),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": request.max_tokens,
            "metadata": metadata,
        }
        optional = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "seed": None}
        body |= {name: value for name, default in optional.items() if (value := getattr(sampling, name)) != default}
        return body

    def _messages(self, call: ModelCall) -> dict[str, Any]:
        """As Gym takes them: reasoning stands in <think> tags before the text, from where Gym moves it to its own field."""
        body = chat_body(call)
        for message in body["messages"]:
            if self._developer_as_system and message["role"] == "developer":
                message["role"] = "system"
            reasoning = message.pop("reasoning_content", None)
            if reasoning:
                message["content"] = f"<think>{reasoning}</think>{message['content'] or ''}"
        return body

    async def _answer(self, request: GenerateRequest, body: dict[str, Any]) -> Any:
        """Asked again without ``max_tokens`` on an overflow: some vLLMs refuse a prompt that fits when ``max_tokens`` on top of
        it does not. What is left of the context is then less than ``max_tokens``, and nothing had been drawn."""
        try:
            return await self._ask(request, body)
        except EngineOverflow:
            return await self._ask(request, {key: value for key, value in body.items() if key != "max_tokens"})

    async def _ask(self, request: GenerateRequest, body: dict[str, Any]) -> Any:
        what = f"{request.request_id}: POST {CHAT}"
        cookie = self._cookies.get(request.session_id)
        headers = {"Content-Type": "application/json", **({"Cookie": cookie} if cookie else {})}
        with typed_errors(what):
            async with self._http.session.post(self._http.url + CHAT, data=encode(body), headers=headers) as response:
                status, data = response.status, await response.read()
                self._remember(request.session_id, {name: morsel.value for name, morsel in response.cookies.items()})
        if status != 200:
            raise _refusal(what, status, data)
        try:
            answer = orjson.loads(data)
        except orjson.JSONDecodeError as exc:
            raise EngineProtocol(f"{what}: the answer is not JSON: {exc}") from exc
        if _empty_for_overflow(answer):
            raise EngineOverflow(f"{what}: the prompt does not fit: Gym's model server answered an empty reply of no length")
        return answer

    def _remember(self, session_id: str, cookies: dict[str, str]) -> None:
        """Gym keeps a session on one vLLM by a cookie, and remembers every session it has given one to."""
        if session_id and cookies:
            self._cookies[session_id] = "; ".join(f"{name}={value}" for name, value in cookies.items())
            self._cookies.move_to_end(session_id)
            while len(self._cookies) > _SESSIONS:
                self._cookies.popitem(last=False)

    def _prompt_ids(self, answer: dict[str, Any], message: dict[str, Any]) -> Any:
        real, reported = answer.get("prompt_token_ids"), message["prompt_token_ids"]
        if real is None or real == reported:
            return reported
        self.second_renderings += 1
        if self.second_renderings == 1:
            log.warning("Gym's model server reports other prompt ids than vLLM used; vLLM's are taken. This is said once")
        return real

    def _chunk(self, request_id: str, answer: Any) -> Chunk:
        chunk = super()._chunk(request_id, answer)
        sampled = answer["choices"][0].get("token_ids")
        if sampled is not None and sampled != chunk.token_ids.tolist():
            raise EngineProtocol(f"{request_id}: the answer has two lists of sampled ids, and they differ")
        if chunk.finish_reason is FinishReason.ABORT:
            raise EngineUnavailable(f"{request_id}: vLLM aborted the sample, which cannot be continued without taking ids")
        return chunk


def _refusal(what: str, status: int, data: bytes) -> EngineError:
    """Gym answers 500 whatever vLLM answered, and quotes it."""
    inner = _INNER_STATUS.search(data.decode("utf-8", "replace")) if status == 500 else None
    return answer_error(what, int(inner[1]) if inner else status, data)


def _empty_for_overflow(answer: Any) -> bool:
    """True for what Gym makes up in place of an overflow: finish reason ``length``, and neither ids nor usage."""
    try:
        (choice,) = answer["choices"]
        message = choice["message"]
        return (
            choice["finish_reason"] == "length"
            and answer.get("usage") is None
            and not message.get("content")
            and message.get("generation_token_ids") is None
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return False
