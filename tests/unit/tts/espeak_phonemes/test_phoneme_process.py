"""The process of espeak-ng: answers, failures, and its end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from parley.errors import InferenceError
from parley.tts.espeak_phonemes import client
from parley.tts.espeak_phonemes.client import PhonemeProcess
from parley.tts.espeak_phonemes.front_end import EspeakFrontEnd

ECHO = "import sys, json\nfor line in sys.stdin: print(json.dumps(json.loads(line)[1]), flush=True)"


@pytest.fixture
def started():
    """Starts a process that runs a program in the place of espeak-ng's."""
    running = []

    def start(program, **options):
        running.append(PhonemeProcess((sys.executable, "-c", program), **options))
        return running[-1]

    yield start
    for process in running:
        process.close()


def test_every_text_is_answered_by_one_process(started):
    process = started(f"import os\n{ECHO.replace('json.loads(line)[1]', 'str(os.getpid())')}")
    assert len({process.phonemes("roa/es", text) for text in ("hola", "adi\u00f3s", "")}) == 1


@pytest.mark.parametrize(
    ("program", "options", "problem"),
    [
        ("import sys; sys.exit(3)", {}, "failed"),
        ("print('no json', flush=True); input()", {}, "failed"),
        ("import time; time.sleep(60)", {"timeout_s": 0.05}, "no answer within 0.05 s"),
    ],
)
def test_a_process_that_fails_is_named(started, program, options, problem):
    with pytest.raises(InferenceError, match=problem):
        started(program, **options).phonemes("roa/es", "hola")


def test_after_a_failure_another_process_answers(started, tmp_path):
    first = tmp_path / "first"
    process = started(
        f"import pathlib, sys\nfirst = pathlib.Path({str(first)!r})\n"
        f"if not first.exists(): first.touch(); sys.exit(1)\n{ECHO}"
    )
    with pytest.raises(InferenceError):
        process.phonemes("roa/es", "hola")
    assert process.phonemes("roa/es", "hola") == "hola"


def test_a_process_that_died_between_two_texts_is_named_and_replaced(started, tmp_path):
    first = tmp_path / "first"
    process = started(
        f"import json, pathlib, sys\nfirst = pathlib.Path({str(first)!r})\n"
        "if not first.exists(): first.touch(); input(); print('\"hola\"', flush=True); sys.exit(0)\n"
        f"{ECHO}"
    )
    process.phonemes("roa/es", "hola")
    assert process._process.wait(60.0) == 0
    with pytest.raises(InferenceError, match="Broken pipe"):
        process.phonemes("roa/es", "hola")
    assert process.phonemes("roa/es", "adi\u00f3s") == "adi\u00f3s"


def test_a_process_that_answers_no_more_and_does_not_end_is_replaced(started, monkeypatch):
    monkeypatch.setattr(client, "_END_S", 0.05)
    process = started("import os, time\ninput(); os.close(1); time.sleep(60)")
    with pytest.raises(InferenceError, match="failed"):
        process.phonemes("roa/es", "hola")


def test_a_program_that_is_not_there_is_named():
    with pytest.raises(InferenceError, match="cannot be started"):
        PhonemeProcess(("/nowhere/python",)).phonemes("roa/es", "hola")


def test_closing_twice_is_no_error(started):
    process = started(ECHO)
    process.phonemes("roa/es", "hola")
    process.close()
    process.close()


def test_espeak_is_in_a_process_of_its_own():
    pytest.importorskip("espeakng_loader")
    process = PhonemeProcess(timeout_s=60.0)
    try:
        assert process.phonemes("roa/es", "hola") == "\u02c8ola"
        assert "^" not in process.phonemes("roa/fr", "les amis")
        # Words of another language are between marks, which the front end removes.
        (word,) = EspeakFrontEnd(process, "fr").pronounce("week-end")
        assert word.phonemes == "w\u02c8i\u02d0k\u02c8\u025bnd"
        assert "libespeak-ng" not in Path("/proc/self/maps").read_text()
        with pytest.raises(InferenceError, match="status 1"):
            process.phonemes("no/voice", "hola")
    finally:
        process.close()
