# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Rigs in processes of their own, to be killed: ``python -m tests.support.serve SESSIONS``.

For every folder named on a line of stdin a child is forked, which serves a rig there and prints a JSON line.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from tests.support.proxy import running
from tests.support.tiny import tiny_codec


async def serve(folder: Path, sessions: int) -> None:
    async with running(folder, token_delay=0.001) as rig:
        opened = [await rig.session(f"r{i}") for i in range(sessions)]
        told = {"pid": os.getpid(), "url": rig.proxy.url, "sessions": [[c.session_id, c.secret] for c in opened]}
        print(json.dumps(told), flush=True)
        await asyncio.Event().wait()


def main() -> None:
    tiny_codec()  # loaded once, inherited by all
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            asyncio.run(serve(Path(line.strip()), int(sys.argv[1])))
            return
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
