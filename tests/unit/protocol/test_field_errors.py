"""Errors of fields name what the fields take."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from parley import protocol
from parley.errors import InvalidMessageError
from parley.field_errors import describe_field_error

Many = Literal[
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17"
]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Part(msgspec.Struct, tag="part"):
    mode: Literal["on", "off"] | None = None
    rate: Literal[8_000, 16_000] = 8_000
    limit: Annotated[int, Meta(ge=1)] | Literal["inf"] = 1
    colours: dict[str, list[Colour]] = {}
    many: Many = "0"
    pair: tuple[Literal["a"], Literal["b"]] = ("a", "b")


class Whole(msgspec.Struct, tag="whole", rename={"parts": "the_parts"}):
    parts: list[Part] = []
    mode: Literal["slow", "off"] = "off"


def said(raw, kind=Part | Whole):
    with pytest.raises(msgspec.MsgspecError) as refused:
        msgspec.json.decode(raw, type=kind)
    return describe_field_error(refused.value, kind)


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ('"type": "whole", "the_parts": [{"type": "part", "mode": "x"}]', "off, on"),
        ('"type": "part", "rate": 5', "8000, 16000"),
        ('"type": "part", "limit": "x"', "a number, inf"),
        ('"type": "part", "colours": {"x": ["green"]}', "red, blue"),
        ('"type": "part", "pair": ["x", "b"]', "a, b"),
        ('"type": "part", "mode": "x"', "off, on, slow"),  # of each type that has the field
        ('"type": "x"', "part, whole"),
        ('"type": "part", "many": "x"', ", ".join(sorted(map(str, range(18)))[:16]) + " and 2 more"),
    ],
)
def test_the_values_of_a_field_are_listed(fields, allowed):
    assert f" (allowed: {allowed}) - at `$." in said("{" + fields + "}")


def test_a_value_without_a_path_has_its_choices_too():
    assert said('"x"', Literal["a", "b"]) == "Invalid enum value 'x' (allowed: a, b)"


@pytest.mark.parametrize("field", ["mode", "many"])
def test_a_long_value_is_shortened(field):
    text = said(f'{{"type": "part", "{field}": "{"x" * 1_000_000}"}}')
    assert text.startswith(f"Invalid enum value '{'x' * 79}… (allowed: ")
    assert text.endswith(f" - at `$.{field}`")


def test_a_value_that_resembles_a_path_is_a_value():
    text = said('{"type": "part", "mode": "x - at `$.many`"}', Part)
    assert text == "Invalid enum value 'x - at `$.many`' (allowed: off, on) - at `$.mode`"
    text = said('"x - at `$.many`"', Literal["a", "b"])
    assert text == "Invalid enum value 'x - at `$.many`' (allowed: a, b)"


@pytest.mark.parametrize("raw", ["{", '{"type": "part", "mode": 5}', "{}", '{"type": "part", "limit": 0}'])
def test_other_errors_are_left_as_they_are(raw):
    with pytest.raises(msgspec.MsgspecError) as refused:
        msgspec.json.decode(raw, type=Part | Whole)
    assert said(raw) == str(refused.value)


def test_a_message_that_names_no_choice_is_refused_with_the_choices():
    with pytest.raises(InvalidMessageError, match=r"\(allowed: eager, normal, off, patient\) - at"):
        protocol.decode_start(b'{"type": "start", "turn": {"eagerness": "fast"}}')
    with pytest.raises(InvalidMessageError, match=r"'begin' \(allowed: .*start.*\) - at"):
        protocol.decode_message(b'{"type": "begin"}')
