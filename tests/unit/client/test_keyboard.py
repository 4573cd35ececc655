"""Lines that are typed while a call is shown."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
from pathlib import Path

import pytest

from parley_client.cli import keyboard
from parley_client.cli.keyboard import LineEditor, can_be_typed_at, typed_lines


@pytest.mark.parametrize(
    ("typed", "lines", "left"),
    [
        (b"hello\n", ["hello"], ""),
        (b"a\r\nb", ["a", ""], "b"),
        (b"hat\x7f\x7fello\bi", [], "helli"),
        (b"one two \x17three", [], "one three"),
        (b"one\x17two", [], "two"),
        (b"wrong\x15right\n", ["right"], ""),
        (b"a\x1b[Db\x1bOP\x1b[1;5Cc\x1bxd", [], "abcd"),
        ("grüße\n".encode(), ["grüße"], ""),
        (b"\x7f\x01\tx", [], "x"),
        (b"\xff\n", ["\ufffd"], ""),
    ],
)
def test_keys_make_lines(typed, lines, left):
    for size in (len(typed), 1):
        editor, found = LineEditor(), []
        for start in range(0, len(typed), size):
            found += editor.feed(typed[start : start + size])
        assert (found, editor.text, editor.ended) == (lines, left, False)


def test_ctrl_d_ends_on_an_empty_line_only():
    editor = LineEditor()
    editor.feed(b"a\x04")
    assert not editor.ended
    assert editor.feed(b"\n\x04") == ["a"]
    assert editor.ended


def test_a_line_has_a_limit():
    editor = LineEditor()
    assert len(editor.feed(b"x" * 5_000 + b"\n")[0]) == 2_000


def echoes(screen):
    return bool(termios.tcgetattr(screen)[3] & termios.ECHO)


async def test_lines_arrive_one_by_one_and_the_terminal_is_left_as_it_was(terminal):
    keys, screen = terminal
    lines, changes, ended = asyncio.Queue(), [], asyncio.Event()
    before = termios.tcgetattr(screen)
    async with asyncio.timeout(5):
        with typed_lines(lines.put_nowait, ended.set, changes.append):
            assert not echoes(screen)
            os.write(keys, b"ye")
            os.write(keys, b"s\nno")
            assert await lines.get() == "yes"
            os.write(keys, b"\x7f\x7f\x04")
            await ended.wait()
    assert lines.empty()
    assert changes[-1] == ""
    assert "".join(changes)
    assert termios.tcgetattr(screen) == before


async def test_a_terminal_that_shows_what_is_typed_is_left_to_do_so(terminal):
    keys, screen = terminal
    lines = asyncio.Queue()
    async with asyncio.timeout(5):
        with typed_lines(lines.put_nowait, lambda: None):
            assert echoes(screen)
            os.write(keys, b"yea\x7fs\n")
            assert await lines.get() == "yes"


async def test_a_terminal_that_is_closed_ends_the_typing(terminal, monkeypatch):
    keys, _ = terminal
    ended = asyncio.Event()

    def hung_up(*_):
        raise OSError("Input/output error")

    with typed_lines(pytest.fail, ended.set):
        monkeypatch.setattr(keyboard.os, "read", hung_up)
        os.write(keys, b"\n")
        async with asyncio.timeout(5):
            await ended.wait()


async def test_keyboard_without_a_terminal_reads_nothing(terminal, monkeypatch):
    monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp() + 1)  # in the background
    assert not can_be_typed_at()
    with typed_lines(pytest.fail, pytest.fail, pytest.fail):
        assert echoes(terminal[1])


def test_a_file_or_nothing_is_not_typed_at(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert not can_be_typed_at()
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert not can_be_typed_at()
    assert not can_be_typed_at()  # closed by now
