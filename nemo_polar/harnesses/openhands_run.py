# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
# pyright: reportMissingImports=false
"""Runs OpenHands' default agent once. Put into the sandbox as a file, and run by the Python that has openhands-sdk 1.58.2.

    openhands-python openhands_run.py CONFIG.json < INSTRUCTION

``CONFIG.json`` is what the adapter writes: ``llm``, ``agent``, ``condenser`` and ``conversation`` are OpenHands' own fields,
the rest is read below. The last line of stdout is one JSON object: how the run ended, in OpenHands' words.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(config: dict[str, Any], instruction: str) -> dict[str, Any]:
    """Run to the end; returns what the last line says."""
    from openhands.sdk import LLM, Agent, AgentContext, Conversation
    from openhands.sdk.context.condenser import LLMSummarizingCondenser
    from openhands.sdk.conversation.response_utils import get_agent_final_response
    from openhands.sdk.event import ActionEvent
    from openhands.sdk.event.conversation_error import ConversationErrorEvent
    from openhands.tools.preset.default import get_default_tools, register_builtins_agents

    errors: list[str] = []
    calls = 0

    def note(event: Any) -> None:
        nonlocal calls
        if isinstance(event, ActionEvent):
            calls += 1
        elif isinstance(event, ConversationErrorEvent):
            errors.append(f"{event.code}: {event.detail}")

    llm = LLM(usage_id="agent", **config["llm"])
    if config["subagents"]:
        register_builtins_agents(enable_browser=False)
    tools: list[Any] = get_default_tools(enable_browser=False, enable_sub_agents=config["subagents"])
    condenser = None
    if config["condenser"] is not None:
        condenser = LLMSummarizingCondenser(llm=llm.model_copy(update={"usage_id": "condenser"}), **config["condenser"])
    agent = Agent(
        llm=llm,
        tools=[
            tool.model_copy(update={"params": {**tool.params, **config["tool_params"].get(tool.name, {})}})
            for tool in tools
            if tool.name not in config["without_tools"]
        ],
        system_prompt_kwargs={"cli_mode": True},
        condenser=condenser,
        mcp_config=config["mcp_servers"],
        # No clock in the prompt; skills are those in HOME.
        agent_context=AgentContext(
            current_datetime=None,
            load_user_skills=config["skills"],
            system_message_suffix=config["append_system_prompt"],
        ),
        **({} if config["system_prompt"] is None else {"system_prompt": config["system_prompt"]}),
        **config["agent"],
    )
    conversation = Conversation(
        agent=agent, workspace=config["workspace"], callbacks=[note], visualizer=None, **config["conversation"]
    )
    try:
        conversation.send_message(instruction)
        conversation.run()
    except Exception as exc:  # noqa: BLE001  (whatever ended it is told in one line)
        errors.append(f"{type(exc).__name__}: {exc}")
    return {
        "status": str(conversation.state.execution_status.value),
        "final_message": get_agent_final_response(conversation.state.events),
        "calls": calls,
        "error": errors[0] if errors else None,
    }


if __name__ == "__main__":
    said = main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), sys.stdin.buffer.read().decode())
    sys.stdout.write("\n" + json.dumps(said) + "\n")
    sys.stdout.flush()
