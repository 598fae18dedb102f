# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The smallest harness with tools: asks for a completion, does what its tool calls say, until the model only talks.

Runs inside a sandbox by itself, so it imports nothing of ours. Its tools are those of the demo's teacher.
"""

import json
import os
import subprocess
import urllib.request
from pathlib import Path

STRING = {"type": "string"}
EDITS = {"type": "array", "items": {"type": "object", "properties": {"oldText": STRING, "newText": STRING}}}
TOOLS = {
    "read": {"path": STRING},
    "write": {"path": STRING, "content": STRING},
    "edit": {"path": STRING, "edits": EDITS},
    "bash": {"command": STRING},
}
OFFERED = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}
    for name, properties in TOOLS.items()
]


def complete(messages: list) -> dict:
    body = json.dumps({"model": os.environ["POLAR_MODEL"], "messages": messages, "tools": OFFERED}).encode()
    headers = {"Authorization": f"Bearer {os.environ['POLAR_API_KEY']}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{os.environ['POLAR_BASE_URL']}/v1/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())["choices"][0]["message"]


def run(name: str, given: dict) -> str:
    if name == "read":
        return Path(given["path"]).read_text()
    if name == "write":
        Path(given["path"]).write_text(given["content"])
        return "written"
    if name == "edit":
        text = Path(given["path"]).read_text()
        for edit in given["edits"]:
            text = text.replace(edit["oldText"], edit["newText"])
        Path(given["path"]).write_text(text)
        return "edited"
    done = subprocess.run(["sh", "-c", given["command"]], capture_output=True, text=True)
    return done.stdout + done.stderr


def main() -> None:
    messages: list = [{"role": "user", "content": os.environ["POLAR_INSTRUCTION"]}]
    for _ in range(8):
        message = complete(messages)
        messages.append(message)
        if not message.get("tool_calls"):
            print(message["content"])
            return
        for call in message["tool_calls"]:
            try:
                said = run(call["function"]["name"], json.loads(call["function"]["arguments"]))
            except (OSError, ValueError, KeyError) as exc:
                said = f"error: {exc!r}"
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})


if __name__ == "__main__":
    main()
