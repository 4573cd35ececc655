"""Twice the text takes at most about twice the work, so that no long text stops the gateway or a model."""

import ast
import importlib
import pkgutil
import re
import sys
from pathlib import Path

import pytest
from counting_matcher import CountingMatcher

import parley
import parley_gateway
import parley_torch

SIZE = 80
MOST_GROWTH = 3.0
ENDS = ["", "!"]
OTHERS = ["eyJ", "eyJa.", "1-", ". "]

STRANGERS = (
    "parley_gateway",
    "parley.agent",
    "parley.asr.itn",
    "parley.engines",
    "parley.knowledge",
    "parley.tools",
    "parley.tts.markdown",
    "parley.tts.normalization",
    "parley.tts.text",
    "parley_torch.tts.voices.voice",
    "parley.turns",
)
"""Modules whose patterns are applied to what strangers send, or to what a model answers them."""


def modules():
    for package in (parley, parley_torch, parley_gateway):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.startswith(STRANGERS):
                yield found.name, found.module_finder.find_spec(found.name).origin


def patterns_in(value):
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from patterns_in(item)
    elif isinstance(value, dict):
        yield from patterns_in([*value.keys(), *value.values()])


def uses_of_re(file):
    """Calls of the functions of ``re``: name and line."""
    for node in ast.walk(ast.parse(Path(file).read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id == "re":
                yield node.func.attr, node


SOURCES = [(name, file) for name, file in modules() if any(uses_of_re(file))]
PATTERNS = {
    f"{name}.{variable}:{pattern.pattern[:40]}": pattern
    for name, _ in SOURCES
    for variable, value in sorted(vars(importlib.import_module(name)).items())
    for pattern in patterns_in(value)
}


@pytest.fixture(autouse=True)
def deep():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(200_000)
    yield
    sys.setrecursionlimit(before)


def text_of(pump, size, end):
    return (pump * (size // len(pump) + 1))[:size] + end


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_takes_linear_time(name):
    matcher = CountingMatcher(PATTERNS[name])
    # Of many characters that a repeat may have, some are enough.
    pumps = matcher.pumps()
    for pump in [*pumps[:: 1 + len(pumps) // 12], *OTHERS]:
        for end in ENDS:
            once = matcher.steps(text_of(pump, SIZE, end))
            twice = matcher.steps(text_of(pump, 2 * SIZE, end))
            assert twice <= MOST_GROWTH * once, (pump, end, once, twice)


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_the_matcher_finds_what_re_finds(pattern):
    matcher = CountingMatcher(pattern)
    pumps = [*matcher.pumps(), *OTHERS]
    for text in (*(text_of(pump, 12, end) for pump in pumps for end in ENDS), "".join(pumps)[:200]):
        assert matcher.spans(text) == [found.span() for found in pattern.finditer(text)], text


def test_scanned_modules_have_patterns():
    assert len(PATTERNS) > 30
    for module in (
        "audit",
        "tts.text",
        "tts.markdown",
        "normalization.english",
        "tokens",
        "cues",
        "tools.http",
        "offers",
    ):
        assert any(f"{module}." in name for name in PATTERNS), module


@pytest.mark.parametrize(("name", "file"), SOURCES)
def test_every_pattern_is_a_constant_of_its_module(name, file):
    """So that none is left out above; what is used in place is a class of characters."""
    for function, call in uses_of_re(file):
        if function not in ("compile", "escape"):
            pattern = call.args[0]
            assert isinstance(pattern, ast.Constant), (name, call.lineno)
            assert re.fullmatch(r"\[[^]]*\]", pattern.value), (name, call.lineno)


@pytest.mark.parametrize(
    ("pattern", "pump"),
    [
        (r"(?:ek_)?eyJ[\w-]+\.", "eyJ"),
        (r"\s+(?=[.,])", " "),
        (r"(\S+)$", "a"),
        (r"(a|b|ab)*c", "ab"),
        (r"(\*\*|\*)(?=\S)(.+?)(?<=\S)\1", "*a "),
    ],
)
def test_slow_patterns_are_found(pattern, pump):
    matcher = CountingMatcher(re.compile(pattern))
    texts = (text_of(pump, size, " ") for size in ((8, 16) if "|ab" in pattern else (SIZE, 2 * SIZE)))
    once, twice = map(matcher.steps, texts)
    assert twice > 3 * once
