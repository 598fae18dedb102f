# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Gym's real ``vllm_model`` servers in a thread of this process, without a head server and without Ray.

Their apps are put together as Gym's ``run_webserver`` does it. One loop serves them all, as Gym's HTTP client is one a process.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import MagicMock, patch

import nemo_gym.server_utils
import uvicorn
from nemo_gym.server_utils import ServerClient
from responses_api_models.vllm_model.app import VLLMModel, VLLMModelConfig

HAS_SWITCH = "request_prompt_and_generation_token_ids" in VLLMModelConfig.model_fields
"""Gym 0.7 can be told to ask vLLM for the prompt's ids."""
_FIXED = {
    "host": "127.0.0.1",
    "port": 0,
    "api_key": "dummy",
    "entrypoint": "",
    "name": "policy_model",
    "model": "policy",
    "return_token_id_information": True,
    "uses_reasoning_parser": True,
}


@contextmanager
def model_server(**config: Any) -> Iterator[str]:
    """The URL of a server with these fields of ``VLLMModelConfig``."""
    client = MagicMock(spec=ServerClient)
    client.global_config_dict = {}
    with patch.object(nemo_gym.server_utils, "get_global_config_dict", return_value={}):
        server = VLLMModel(config=VLLMModelConfig.model_validate(_FIXED | config), server_client=client)
        app = server.setup_webserver()
        server.setup_exception_middleware(app)
        if hasattr(server, "setup_cancellation_middleware"):
            server.setup_cancellation_middleware(app)
        listener = socket.create_server(("127.0.0.1", 0))
        serving = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        done = asyncio.run_coroutine_threadsafe(serving.serve(sockets=[listener]), _loop())
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            serving.should_exit = True
            done.result(20)
            listener.close()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="gym").start()
    return loop
