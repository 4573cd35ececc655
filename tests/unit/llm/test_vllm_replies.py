"""Answers in formats that vLLM's parsers read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TIME = {"name": "get_time", "arguments": {"city": "Paris"}}
WEATHER = {"name": "get_weather", "arguments": {"city": "Paris"}}


@pytest.fixture(scope="module")
def found():
    pytest.importorskip("tokenizers")  # installed with vLLM
    command = [sys.executable, str(Path(__file__).parent / "read_replies.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("tokens", [1, 3, 1000])
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("text", ["It's ten,\n\nnot twelve."]),
        ("call", [TIME]),
        ("text before", ["Let me see.", TIME]),
        ("parallel", [TIME, WEATHER]),
        ("no tools", [TIME]),
        ("llama", [TIME]),
        ("llama text", ["It's ten."]),
        ("llama parallel", [TIME, WEATHER]),
        ("llama tag", [TIME]),
        ("pythonic", [TIME]),
        ("pythonic parallel", [TIME, {**WEATHER, "arguments": {"city": "Rome"}}]),
        ("pythonic text", ["It's ten."]),
        ("thinking", ["It's ten.", TIME]),
        ("thinking only", []),
    ],
)
def test_answers_are_read_however_they_arrive(found, tokens, answer, expected):
    assert found["read"][str(tokens)][answer] == expected


def test_parsers_that_cannot_be_used_are_refused_at_the_start(found):
    unknown, unknown_reasoning, other_tokenizer = found["refused"]
    assert "no_such_parser" in unknown
    assert "no_such_parser" in unknown_reasoning
    assert "tokenizer" in other_tokenizer


def test_calls_are_guided_where_vllm_has_a_grammar_for_the_format(found):
    begins = {form["begin"] for form in json.loads(found["guided"])["format"]["tags"]}
    assert '<tool_call>\n{"name": "get_time", "arguments": ' in begins
    assert found["unguided"] is None


def test_forced_call_has_no_text_in_vllms_grammar(found):
    xgrammar = pytest.importorskip("xgrammar")
    vocabulary = [*map(chr, range(32, 127)), "\n"]
    tokens = xgrammar.TokenizerInfo(vocabulary, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[])
    compiler = xgrammar.GrammarCompiler(tokens)

    def accepts(tag, text):
        return xgrammar.GrammarMatcher(compiler.compile_structural_tag(tag)).accept_string(text)

    call = '<tool_call>\n{"name": "get_%s", "arguments": {"city": "Paris"}}\n</tool_call>'
    some, named = found["forced"]
    assert [accepts(some, call % name) for name in ("time", "weather")] == [True, True]
    assert [accepts(named, call % name) for name in ("time", "weather")] == [True, False]
    assert [accepts(tag, "Hello") for tag in (some, named)] == [False, False]
    assert found["not forced"] is None


def test_the_grammar_of_the_same_tools_is_checked_once(found):
    assert found["guided again"] == found["guided"]
    assert found["checked"] == 1


def test_the_rest_of_an_answer_keeps_the_white_space_before_it(found):
    assert found["continued"] == [" ten o'clock.", TIME]


def test_a_model_that_thinks_does_not_go_on_with_an_answer(found):
    assert found["continues"] == [True, False]
