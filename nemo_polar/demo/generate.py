# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Makes tasks of the demo's families, as many as wanted, for training and for held-out evaluation.

    python -m nemo_polar.demo.generate --split train --count 64 --seed 0 > tasks.jsonl

The two splits share no word, so a held-out task is made of words that no training task ever held; ``demo/tasks.yaml`` is of the
held-out words too. The same arguments always give the same tasks, one JSON object a line, as ``rollout/tasks.py`` reads them.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from nemo_polar.demo.families import FAMILIES, Family

Split: TypeAlias = Literal["train", "held_out"]

WORDS: dict[Split, list[str]] = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))


def tasks(split: Split, count: int, seed: int = 0, families: Sequence[Family] = FAMILIES) -> list[dict[str, Any]]:
    """``count`` tasks, the families in turn; no two have the same instruction.

    Raises:
        ValueError: the words do not suffice for so many different tasks of these families.
    """
    rng = random.Random(f"{split}/{seed}")
    words = WORDS[split]
    seen: set[str] = set()
    made = []
    for number in range(count):
        family = families[number % len(families)]
        for _ in range(1000):
            task = _task(family, f"{split}-{seed}-{number:04d}-{family.name}", rng, words)
            if task["instruction"] not in seen:
                break
        else:
            raise ValueError(f"{len(words)} words do not make {count} different tasks of the families asked for")
        seen.add(task["instruction"])
        made.append(task)
    return made


def _task(family: Family, task_id: str, rng: random.Random, words: Sequence[str]) -> dict[str, Any]:
    drawn = dict(zip(family.fields, rng.sample(words, len(family.fields)), strict=True))
    drawn |= {name: rng.choice(values) for name, values in family.choices.items()}
    checks = [{"name": name, "command": command, "weight": weight} for name, command, weight in family.checks(drawn)]
    return {
        "id": task_id.replace("_", "-"),
        "instruction": family.instruction.format(**drawn),
        "files": family.files(drawn),
        "verifier": {"type": "command", "checks": checks},
        "budget": {"seconds": 120, "turns": 6, "tokens": 1024},
        "metadata": {"family": family.name},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Print tasks of the demo's families, one JSON object a line.")
    parser.add_argument("--split", choices=get_args(Split), default="train")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for task in tasks(args.split, args.count, args.seed):
        sys.stdout.write(json.dumps(task) + "\n")


if __name__ == "__main__":
    main()
