# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Bodies of tool calls: verbatim when well-formed, marked when not, text when there is no name."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nemo_polar.tokens.calls import CallText, read_call, read_hermes, read_qwen_xml
from nemo_polar.types import ToolSpec

_NUMBERS = ("1e5", "-0", "1.0", "12345678901234567890", "1E+2", "-0.0", "9" * 5000)


def _written(draw: st.DrawFn, value: Any) -> str:
    """``value`` as JSON text with spacing, number forms and escapes as they come."""
    space = draw(st.sampled_from(["", " ", "\n  ", "\t"]))
    if isinstance(value, dict):
        members = [f"{space}{_written(draw, k)}{space}:{space}{_written(draw, v)}" for k, v in value.items()]
        return "{" + ",".join(members) + space + "}"
    if isinstance(value, list):
        return "[" + ",".join(space + _written(draw, v) for v in value) + space + "]"
    if isinstance(value, float):
        return draw(st.sampled_from(_NUMBERS))
    return json.dumps(value, ensure_ascii=draw(st.booleans()))


_TEXT = st.one_of(st.sampled_from(["{", '"}', "\\", "</tool_call>", '"arguments": ', "é🙂", "\n"]), st.text(max_size=6)).map(
    lambda s: s.encode("utf-8", "replace").decode()
)
_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.just(0.5), _TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_TEXT, inner, max_size=3)),
    max_leaves=8,
)


@st.composite
def _json_calls(draw: st.DrawFn) -> tuple[str, str, str]:
    """A body, its name and the exact text of its arguments."""
    name = draw(_TEXT.filter(str.strip))
    arguments = _written(draw, draw(st.dictionaries(_TEXT, _VALUES, max_size=4)))
    members = [f'"name": {_written(draw, name)}', f'"arguments":{draw(st.sampled_from(["", " ", chr(10)]))}{arguments}']
    if draw(st.booleans()):
        members.append(f'"id": {_written(draw, draw(_VALUES))}')
    return f"\n{{{' , '.join(draw(st.permutations(members)))}}}\n", name, arguments


@given(_json_calls())
def test_a_well_formed_call_keeps_its_arguments_to_the_character(call: tuple[str, str, str]):
    body, name, arguments = call
    assert read_hermes(body) == CallText(name, arguments)


@given(_json_calls(), st.data())
def test_a_damaged_call_is_marked_or_text_and_never_repaired(call: tuple[str, str, str], data: st.DataObject):
    body = call[0].strip()
    cut = data.draw(st.integers(0, len(body) - 1))
    damaged = body[:cut] + data.draw(st.sampled_from(["", "x", '"', "}", ","])) + body[cut + 1 :]
    read = read_hermes(damaged)
    if read is None:
        return
    assert read.arguments in damaged or read.arguments == "{}"
    if not read.malformed:
        assert json.JSONDecoder(parse_int=str).decode(damaged)["name"] == read.name


@given(st.one_of(_json_calls().map(lambda c: c[0]), _VALUES.map(json.dumps), st.text(alphabet='{}[]":, \nae1', max_size=12)))
@example('{"name": "f", "arguments": {"x": NaN}}')
@example('{"name": "f", "arguments": {}, }')
@example('{"name": "f" "arguments": {}}')
@example('{"name": "f", "arguments": {}} {')
def test_well_formed_is_what_a_strict_json_parser_takes_as_an_object(body: str):
    constants: list[str] = []
    try:
        parsed = json.loads(body, parse_int=str, parse_constant=constants.append)
    except ValueError:
        parsed = None
    if constants:  # NaN, Infinity: Python takes them, JSON does not
        parsed = None
    read = read_hermes(body)
    if isinstance(parsed, dict) and isinstance(parsed.get("name"), str) and parsed["name"].strip():
        assert read is not None
        assert read.malformed == (not isinstance(parsed.get("arguments", {}), dict))
    else:
        assert read is None or read.malformed


@pytest.mark.parametrize("number", _NUMBERS)
def test_numbers_keep_the_form_they_were_sampled_in(number: str):
    assert read_hermes(f'{{"name": "f", "arguments": {{"x":  {number} }}}}') == CallText("f", f'{{"x":  {number} }}')


@pytest.mark.parametrize(
    ("body", "name", "arguments"),
    [
        ('{"name": "f", "arguments": {"x": 1}', "f", '{"x": 1}'),  # the wrapper's brace is missing
        ('{"name": "f", "arguments": {"x": 1}}}', "f", '{"x": 1}}'),  # one too many: one is the wrapper's
        ('{"name": "f", "arguments": {"x": }}', "f", '{"x": }'),
        ('{"name": "f", "arguments": {"x": "a\nb"}}', "f", '{"x": "a\nb"}'),  # a raw newline is no JSON
        ('{"name": "f", "arguments": {"x": "}"', "f", '{"x": "}"'),  # a brace in a string closes nothing
        ('{"name": "f", "arguments": {"x": "unclosed}}', "f", '{"x": "unclosed}}'),
        ('{"name": "f", "arguments": "{\\"x\\": 1}"}', "f", '"{\\"x\\": 1}"'),  # JSON, but no object
        ('{"name": "f", "arguments": null}', "f", "null"),
        ('{"name": "f", "arguments": {"x": NaN}}', "f", '{"x": NaN}'),
        ('{"name": "f", "arg', "f", ""),
        ('{name: 1, "name" : "g\\u00e9", "arguments" : x}', "gé", "x"),
        ('{"arguments": {"x": 1}, "name": "f", oops}', "f", '{"x": 1}, "name": "f", oops'),
        ('say "name": "f"', "f", ""),
    ],
)
def test_a_malformed_call_with_a_name_is_passed_on_as_it_is(body: str, name: str, arguments: str):
    assert read_hermes(body) == CallText(name, arguments, malformed=True)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{}",
        "[]",
        "ls -la",
        '{"arguments": {"name": "inner"}}',
        '{"name": "", "arguments": {}}',
        '{"name": " ", "arguments": {}}',
        '{"name": 5, "arguments": {}}',
        '{"name": ["f"], oops',
        '{"name": "\\ud83d", "arguments": {}}',
        '{"name": <function-name>, "arguments": <args-json-object>}',
    ],
)
def test_without_a_readable_name_there_is_no_call(body: str):
    assert read_hermes(body) is None


def test_missing_arguments_are_an_empty_object():
    assert read_hermes('{"name": "f"}') == CallText("f", "{}")


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "f", "arguments": ' + "[" * 200_000,
        '{"name": "f", "arguments": "' + '\\"' * 100_000 + "}",
        '{"name": "f", "arguments": ' + '"name": ' * 30_000 + "}",
        '{"name": "f", ' + '"arguments" ' * 20_000 + "}",
        '{"name"' + " " * 200_000 + '"arguments"' + "}" * 100_000,
        '"name":"' * 30_000,
    ],
)
def test_hostile_bodies_are_read_in_linear_time(body: str):
    started = time.perf_counter()
    read = read_hermes(body)
    assert time.perf_counter() - started < 1
    assert read is None or read.malformed


# --- tags -------------------------------------------------------------------------------------------------------------

_TOOLS = (
    ToolSpec(
        "f",
        parameters={
            "properties": {
                "s": {"type": "string"},
                "one": {"type": ["string"]},
                "n": {"type": "integer"},
                "o": {"type": "object"},
                "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "either": {"type": ["string", "integer"]},
                "any": {},
            }
        },
    ),
)


def _tags(*pairs: tuple[str, str], name: str = "f") -> str:
    return f"\n<function={name}>\n" + "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in pairs) + "</function>\n"


@pytest.mark.parametrize(
    ("key", "value", "written"),
    [
        ("s", "true", '"true"'),
        ("s", "  two\n  lines \n", '"  two\\n  lines \\n"'),
        ("one", "1", '"1"'),
        ("n", "12345678901234567890", "12345678901234567890"),
        ("n", "1e5", "1e5"),
        ("n", "abc", '"abc"'),
        ("n", "True", '"True"'),
        ("n", "NaN", '"NaN"'),
        ("o", '{"a": [1,  2]}', '{"a": [1,  2]}'),
        ("maybe", "null", "null"),
        ("maybe", "123", '"123"'),
        ("maybe", '"quoted"', '"\\"quoted\\""'),
        ("either", "5", "5"),
        ("either", "5.5", '"5.5"'),
        ("either", "true", '"true"'),
        ("any", "5", "5"),
        ("any", "plain é", '"plain é"'),
        ("undeclared", "[1]", "[1]"),
        ("n", "", '""'),
    ],
)
def test_the_schema_types_a_tagged_value(key: str, value: str, written: str):
    assert read_qwen_xml(_tags((key, value)), _TOOLS) == CallText("f", f'{{"{key}":{written}}}')


@given(st.lists(st.tuples(st.sampled_from(["s", "one", "k é", 'q"']), _TEXT), max_size=4))
def test_tagged_strings_are_kept_to_the_character(pairs: list[tuple[str, str]]):
    pairs = [(k, v) for k, v in pairs if "<" not in v]
    tools = (ToolSpec("f", parameters={"properties": {k: {"type": "string"} for k, _ in pairs}}),)
    read = read_qwen_xml(_tags(*pairs), tools)
    assert read is not None
    assert not read.malformed
    assert json.loads(read.arguments, object_pairs_hook=list) == pairs


def test_a_call_without_parameters_has_an_empty_object():
    assert read_qwen_xml("<function=f></function>") == CallText("f", "{}")


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ("<function=f>\n<parameter=a>\n1\n", "<parameter=a>\n1"),
        ("<function=f>\n<parameter=a>\n1\n</function>", "<parameter=a>\n1"),
        ("<function=f>\n<parameter=a>\n1\n</parameter>\n", "<parameter=a>\n1\n</parameter>"),
        ("<function=f>junk</function>", "junk"),
        ("call <function=f></function>", ""),
        ("<function=f></function><function=g></function>", "</function><function=g>"),
    ],
)
def test_a_broken_tagged_call_is_passed_on_as_it_is(body: str, arguments: str):
    assert read_qwen_xml(body) == CallText("f", arguments, malformed=True)


@pytest.mark.parametrize("body", ["", "<function=>", "<function= ></function>", '{"name": "f"}', "<function=f"])
def test_without_a_function_tag_there_is_no_call(body: str):
    assert read_qwen_xml(body) is None


@pytest.mark.parametrize(
    "schema", [{"anyOf": 5}, {"type": {}}, {"type": [{}, None]}, {"oneOf": [5, {"type": 3}]}, 7, None, "string"]
)
def test_a_nonsense_schema_types_nothing(schema: Any):
    tools = (ToolSpec("f", parameters={"properties": {"k": schema}}),)
    assert read_qwen_xml(_tags(("k", "1")), tools) == CallText("f", '{"k":1}')


@pytest.mark.parametrize("parameters", [{}, {"properties": None}, {"properties": []}])
def test_a_tool_without_properties_types_nothing(parameters: dict[str, Any]):
    assert read_qwen_xml(_tags(("k", "x")), (ToolSpec("f", parameters=parameters),)) == CallText("f", '{"k":"x"}')


def test_the_form_chooses_the_reader():
    assert read_call('{"name": "f"}', "hermes") == CallText("f", "{}")
    assert read_call("<function=f></function>", "qwen_xml") == CallText("f", "{}")
    assert read_call('{"name": "f"}', "qwen_xml") is None
