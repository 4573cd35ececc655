"""The process of espeak-ng: answers, failures, what replaces it, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from parley.errors import InferenceError, InvalidInputError, ModelUnavailableError
from parley.runtime.attempts import Attempts
from parley.tts.espeak_phonemes.client import PhonemeProcess, is_installed
from parley.tts.espeak_phonemes.front_end import EspeakFrontEnd

LIMIT_S = 60.0
needs_espeak = pytest.mark.skipif(not is_installed(), reason="espeakng-loader is not installed")
# What it does with a text is what the text says.
PROGRAM = """
import json, os, sys, time
print('"ready"', flush=True)
for line in sys.stdin:
    _, texts = json.loads(line)
    if texts == ["end"]:
        sys.exit(3)
    if texts == ["hang"]:
        time.sleep(600)
    if texts == ["compute"]:
        while True:
            pass
    if texts == ["late"]:
        time.sleep(0.9)
    if texts == ["close"]:
        os.close(1)
        time.sleep(600)
    if texts == ["other"]:
        texts = []
    if texts == ["long"]:
        texts = ["x" * 100_000]
    if texts == ["half"]:
        print('["a', end="", flush=True)
        time.sleep(600)
    print(json.dumps([f"{os.getpid()}" if text == "pid" else text for text in texts]), flush=True)
"""


@pytest.fixture
def started():
    """Starts a process that runs a program in the place of espeak-ng's."""
    running = []

    def start(program=PROGRAM, **options):
        options = {"timeout_s": LIMIT_S, "start_s": LIMIT_S} | options
        running.append(PhonemeProcess((sys.executable, "-c", program), **options))
        running[-1].wait_until_tried()
        return running[-1]

    yield start
    for process in running:
        process.close()


def say(process, text):
    (answer,) = process.phonemes("roa/es", [text])
    return answer


def say_soon(process, text):
    """The answer of the process that is there, or comes."""
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            return say(process, text)
        except ModelUnavailableError:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_every_text_is_answered_by_one_process(started):
    process = started()
    assert process.phonemes("roa/es", ["hola", "", "adi\u00f3s"]) == ["hola", "", "adi\u00f3s"]
    assert say(process, "pid") == say(process, "pid")
    assert process.phonemes("roa/es", []) == []
    assert process.restarts() == {}


def test_answers_may_be_longer_than_a_pipe(started):
    assert len(say(started(), "long")) == 100_000
    assert say(started(), "x" * 200_000) == "x" * 200_000


@pytest.mark.parametrize(
    ("text", "problem", "reason"),
    [
        ("end", "has ended", "died"),
        ("close", "has ended", "died"),
        ("other", "another question", "died"),
        ("hang", "does not answer", "unresponsive"),
        ("half", "does not answer", "unresponsive"),
        ("compute", "does not answer", "unresponsive"),
    ],
)
def test_a_process_that_fails_is_replaced_and_counted(started, caplog, text, problem, reason):
    process = started(timeout_s=0.5 if reason == "unresponsive" else LIMIT_S)
    with pytest.raises(InferenceError, match=problem):
        say(process, text)
    assert say_soon(process, "hola") == "hola"
    assert process.restarts() == {reason: 1}
    assert "espeak-ng's process ended with status" in caplog.text


def test_a_process_that_dies_between_two_texts_is_replaced_at_once(started):
    process = started()
    first = int(say(process, "pid"))
    os.kill(first, signal.SIGKILL)
    end = time.monotonic() + LIMIT_S
    while process.restarts() != {"died": 1}:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert int(say_soon(process, "pid")) != first


def test_a_text_over_which_it_fails_again_is_refused_from_then_on(started):
    process = started(attempts=Attempts(9, waits_s=(0.0,)))
    for _ in range(2):
        with pytest.raises(InferenceError):
            say_soon(process, "end")
        say_soon(process, "hola")
    with pytest.raises(InvalidInputError, match="2 times"):
        say(process, "end")
    assert say(process, "hola") == "hola"
    assert process.restarts() == {"died": 2}


def test_a_text_that_is_computed_without_an_end_is_refused_too(started):
    process = started(timeout_s=0.5, attempts=Attempts(99, waits_s=(0.0,)))
    late, refusal = 0, None
    # A process that the machine held up meanwhile is not to blame: that time does not count.
    while refusal is None and late < 30:
        try:
            say_soon(process, "compute")
        except InvalidInputError as error:
            refusal = error
        except InferenceError:
            late += 1
            say_soon(process, "hola")
    assert late >= 2
    assert "2 times" in str(refusal)


def test_a_process_that_is_held_up_is_waited_for(started):
    assert say(started(timeout_s=0.5), "late") == "late"


def test_a_text_is_not_at_fault_where_the_process_was_held_up(started):
    process = started(timeout_s=0.2, attempts=Attempts(9, waits_s=(0.0,)))
    for _ in range(3):
        with pytest.raises(InferenceError, match="does not answer"):
            say_soon(process, "hang")
    assert process.restarts()["unresponsive"] >= 2


def test_a_failure_is_forgotten_when_the_text_is_answered(started, tmp_path):
    # Ends over the text where the file is there.
    fatal = tmp_path / "fatal"
    process = started(
        PROGRAM.replace('["end"]', f'["sometimes"] and os.path.exists("{fatal}")'),
        attempts=Attempts(9, waits_s=(0.0,)),
    )
    for _ in range(3):
        fatal.touch()
        with pytest.raises(InferenceError, match="has ended"):
            say_soon(process, "sometimes")
        fatal.unlink()
        assert say_soon(process, "sometimes") == "sometimes"


def test_starts_are_bounded_and_texts_are_refused_meanwhile(started, caplog):
    process = started("import sys; sys.exit(1)", attempts=Attempts(2, waits_s=(0.0,)))
    end = time.monotonic() + LIMIT_S
    while "is not started again for now" not in caplog.text:
        assert time.monotonic() < end
        time.sleep(0.01)
    with pytest.raises(ModelUnavailableError):
        say(process, "hola")
    assert process.restarts() == {"died": 2}
    assert caplog.text.count("ended with status 1") == 3


@pytest.mark.parametrize(
    ("program", "options"),
    [("import sys; sys.exit(3)", {}), ("print(1, flush=True); input()", {}), ("input()", {"start_s": 0.05})],
)
def test_what_does_not_become_ready_is_not_asked(started, program, options):
    process = started(program, attempts=Attempts(0), **options)
    assert not process.wait_until_tried()
    with pytest.raises(ModelUnavailableError):
        say(process, "hola")


def test_a_program_that_is_not_there_is_named(caplog):
    process = PhonemeProcess(("/nowhere/python",), attempts=Attempts(0))
    assert not process.wait_until_tried()
    process.close()
    assert "cannot be started" in caplog.text


def test_phoneme_process_ends_with_its_owner(started):
    process = started()
    number = int(say(process, "pid"))
    process.close()
    process.close()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)
    with pytest.raises(ModelUnavailableError):
        say(process, "hola")


PARENT = """
import os, signal, time
from parley.tts.espeak_phonemes.client import PhonemeProcess
process = PhonemeProcess(start_s=60.0)
assert process.wait_until_tried()
print(process._process.pid, flush=True)
os.kill(process._process.pid, signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGKILL)
"""


@needs_espeak
def test_a_process_that_hangs_dies_with_its_parent():
    parent = subprocess.run([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, check=False)
    assert parent.returncode == -signal.SIGKILL
    end = time.monotonic() + LIMIT_S
    while is_running(int(parent.stdout)):
        assert time.monotonic() < end
        time.sleep(0.01)


def is_running(number):
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@needs_espeak
def test_espeak_is_in_a_process_of_its_own():
    process = PhonemeProcess(timeout_s=LIMIT_S, start_s=LIMIT_S)
    try:
        assert process.wait_until_tried()
        assert process.phonemes("roa/es", ["hola", "que"]) == ["\u02c8ola", "k\u02c8e"]
        assert "^" not in "".join(process.phonemes("roa/fr", ["les amis"]))
        # Words of another language are between marks, which the front end removes.
        (word,) = EspeakFrontEnd(process, "fr").pronounce("week-end")
        assert word.phonemes == "w\u02c8i\u02d0k\u02c8\u025bnd"
        assert "libespeak-ng" not in Path("/proc/self/maps").read_text()
        with pytest.raises(InferenceError, match="has ended"):
            process.phonemes("no/voice", ["hola"])
    finally:
        process.close()
