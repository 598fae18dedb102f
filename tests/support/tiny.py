# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A tokenizer that needs no download: 256 bytes, ChatML's special tokens, no merges; and a codec over the shipped template."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from nemo_polar.settings import CodecSettings
from nemo_polar.tokens.base import Codec
from nemo_polar.tokens.load import load_codec

HERMES = Path(load_codec.__code__.co_filename).parent / "templates" / "hermes.jinja"
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write_tiny_tokenizer(folder: Path) -> Path:
    """A folder as a model has it: tokenizer.json and tokenizer_config.json."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIALS])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@cache
def tiny_codec(**settings) -> Codec:
    """One codec a process over that tokenizer and the hermes template."""
    folder = write_tiny_tokenizer(Path(mkdtemp(prefix="polar-tiny-")))
    return load_codec(CodecSettings(tokenizer=str(folder), renderer="template", chat_template=str(HERMES), **settings))


@cache
def thinking_codec() -> Codec:
    """The tiny one, of a family that reasons: what tells such a family is a template that names its marks."""
    folder = write_tiny_tokenizer(Path(mkdtemp(prefix="polar-tiny-")))
    template = folder / "thinking.jinja"
    template.write_text(HERMES.read_text() + "{#- <think> -#}")
    return load_codec(CodecSettings(tokenizer=str(folder), renderer="template", chat_template=str(template)))
