# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Which codec a model folder gets, and what is said when it gets none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemo_polar.errors import ConfigError
from nemo_polar.settings import CodecSettings
from nemo_polar.tokens.load import load_codec
from nemo_polar.tokens.rendered import RendererCodec
from nemo_polar.tokens.template import TemplateCodec
from nemo_polar.types import as_ids
from tests.support import models
from tests.support.conversations import TOOLS, codec, result, user

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """A model folder with a given tokenizer and given files of its own; JSON files are merged into those that are there."""

    def make(source: Path, **files: Any) -> Path:
        for path in source.iterdir():
            (tmp_path / path.name).symlink_to(path)
        for name, content in files.items():
            path = tmp_path / name.replace("__", ".")
            if isinstance(content, dict):
                there = json.loads(path.read_bytes()) if path.exists() else {}
                content = json.dumps({k: v for k, v in (there | content).items() if v is not None})
            path.unlink(missing_ok=True)
            path.write_text(content)
        return tmp_path

    return make


def test_qwen3_is_known_by_its_template_and_checked_against_it() -> None:
    made = codec(models.qwen3())
    assert isinstance(made, RendererCodec) and made.name == "qwen3" and made.format.call_body == "hermes"
    assert codec(models.qwen3(), template_options={"enable_thinking": False}).name == "qwen3"


def test_qwen35_is_known_by_its_name_or_type_where_it_has_no_template(folder: Callable[..., Path]) -> None:
    assert codec(models.qwen35()).name == "qwen3.5"
    made = folder(models.qwen35(), tokenizer_config__json={"name_or_path": None}, config__json={"model_type": "qwen3_5_moe"})
    assert load_codec(CodecSettings(tokenizer=str(made))).name == "qwen3.5"


def test_a_changed_template_is_not_served_by_the_renderer_of_the_original(folder: Callable[..., Path]) -> None:
    own = json.loads((models.qwen3() / "tokenizer_config.json").read_bytes())["chat_template"]
    changed = own.replace("# Tools", "# Utensils")
    made = load_codec(CodecSettings(tokenizer=str(folder(models.qwen3(), chat_template__jinja=changed))))
    assert isinstance(made, TemplateCodec)
    assert "# Utensils" in made.tokenizer.decode(made.render([user("hi")], TOOLS))


def test_a_template_that_does_not_think_by_default_gets_a_renderer_that_does_not(folder: Callable[..., Path]) -> None:
    own = json.loads((models.qwen3() / "tokenizer_config.json").read_bytes())["chat_template"]
    asked, default = (
        "enable_thinking is defined and enable_thinking is false",
        "not (enable_thinking is defined and enable_thinking)",
    )
    calm = own.replace(asked, default)
    made = load_codec(CodecSettings(tokenizer=str(folder(models.qwen3(), chat_template__jinja=calm))))
    assert isinstance(made, RendererCodec)
    assert made.tokenizer.decode(made.render([user("hi")], ())).endswith("<think>\n\n</think>\n\n")


def test_a_chatml_model_without_tools_in_its_template_gets_the_packaged_one(folder: Callable[..., Path]) -> None:
    made = load_codec(CodecSettings(tokenizer=str(folder(models.tiny(), chat_template__jinja=CHATML))))
    assert made.name == "template:hermes"
    text = made.tokenizer.decode(made.render([user("hi")], TOOLS))  # type: ignore[attr-defined]
    assert '"name": "read"' in text


def test_a_model_without_tool_calls_keeps_its_own_template(folder: Callable[..., Path]) -> None:
    made = load_codec(CodecSettings(tokenizer=str(folder(models.tiny(), chat_template__jinja=CHATML)), call_format="none"))
    assert isinstance(made, TemplateCodec) and made.format.call is None and made.name != "template:hermes"


def test_a_template_by_path_wins_over_everything(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text(CHATML + "{# <tool_call> #}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
    made = load_codec(CodecSettings(tokenizer=str(models.tiny()), chat_template=str(path)))
    assert made.name == "template:mine"


def test_the_makers_stop_ids_are_stop_ids(folder: Callable[..., Path]) -> None:
    made = folder(models.tiny(), generation_config__json={"eos_token_id": [0, 2]})
    assert load_codec(CodecSettings(tokenizer=str(made))).stop_token_ids == (0, 2)
    assert codec(models.tiny()).stop_token_ids == (2,)


def test_each_codec_extends_what_it_rendered() -> None:
    for made in (codec(models.tiny()), codec(models.qwen3()), codec(models.qwen35())):
        prompt = made.render([user("hi")], TOOLS)
        sampled = as_ids(made.tokenizer.encode("x</think>ok<|im_end|>"))
        assert len(made.bridge(prompt, sampled, [result("r"), user("go on")], TOOLS)) > 5


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"chat_template": "/nowhere.jinja"}, "nowhere"),
        ({"renderer": "gpt-oss"}, "supported are"),
        ({"renderer": "template"}, "has none"),
        ({"template_options": {"date": "soon"}}, "date"),
    ],
)
def test_a_setting_that_does_not_fit_is_a_config_error(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load_codec(CodecSettings(tokenizer=str(models.tiny()), **settings))


def test_a_call_format_that_cannot_be_parsed_is_named(folder: Callable[..., Path]) -> None:
    other = CHATML.replace(
        "{{ m.content }}", "{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}"
    )
    other = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}" + other
    made = folder(models.tiny(), chat_template__jinja=other)
    with pytest.raises(ConfigError, match="hermes"):
        load_codec(CodecSettings(tokenizer=str(made)))
    forced = load_codec(CodecSettings(tokenizer=str(made), call_format="hermes"))
    assert isinstance(forced, TemplateCodec)


def test_a_broken_file_is_a_config_error(folder: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        load_codec(CodecSettings(tokenizer=str(folder(models.tiny(), generation_config__json="{"))))
