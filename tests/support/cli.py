# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Small runs from the command line: a script as the harness, the in-process engine, plain processes for sandboxes."""

from __future__ import annotations

from pathlib import Path

from tests.support.models import tiny

AGENT = """
import json, os, sys, urllib.request
messages = [{"role": "user", "content": os.environ["POLAR_INSTRUCTION"]}]
url, key = os.environ["POLAR_BASE_URL"] + "/v1/chat/completions", os.environ["POLAR_API_KEY"]
headers = {"authorization": "Bearer " + key, "content-type": "application/json"}
for n in range(int(sys.argv[1])):
    body = json.dumps({"model": "polar", "messages": messages}).encode()
    answer = json.load(urllib.request.urlopen(urllib.request.Request(url, body, headers)))
    messages += [answer["choices"][0]["message"], {"role": "user", "content": f"go on {n}"}]
open("out.txt", "w").write("done")
"""
TASKS = """\
tasks:
  - id: writes
    instruction: Write out.txt.
    files:
      agent.py: {source: agent.py}
    verifier: {type: command, command: grep -q done out.txt}
  - id: fails
    instruction: Write something else.
    files:
      agent.py: {source: agent.py}
    verifier: {type: command, command: grep -q else out.txt}
"""


def write_tasks(folder: Path) -> Path:
    """A task file with two tasks, the first of which is done by ``AGENT``."""
    (folder / "agent.py").write_text(AGENT)
    path = folder / "tasks.yaml"
    path.write_text(TASKS)
    return path


def overrides(tasks: Path, *more: str, turns: int = 3) -> list[str]:
    """What makes ``polar rollout`` a small run below the task file's folder. Later ones go before earlier ones."""
    template = Path(__file__).parents[2] / "nemo_polar" / "tokens" / "templates" / "hermes.jinja"
    return [
        f"env.tasks=[{tasks}]",
        f"out={tasks.parent / 'runs'}",
        "name=small",
        "group_size=2",
        "harness=shell",
        f"harness.options.command='python3 agent.py {turns}'",
        "sandbox=process",
        "sandbox.toolchain=null",
        "engine=scripted",
        "engine.options={script: null, vocab: 1024, reply_tokens: [4, 8]}",
        "policy=qwen3",
        f"policy.codec.tokenizer={tiny()}",
        "policy.codec.renderer=template",
        f"policy.codec.chat_template={template}",
        *more,
    ]
