"""Which language model answers in time on a machine, by its measured times."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from parley.agent.config import AgentConfig
from parley.launcher import advice, larger_model
from parley.launcher.advice import Measured, advise, measure
from parley.launcher.larger_model import read_advice
from parley.llm.messages import Completed, TextDelta

SMALL, LARGE = "qwen2.5-coder-0.5b-w8a8", "qwen2.5-coder-1.5b-w8a8"


def measured(model, first_token_ms, tokens_per_s):
    return Measured(model, 500, first_token_ms, tokens_per_s)


@pytest.mark.parametrize(
    ("first_token_ms", "tokens_per_s", "in_time"),
    [(100, 40.0, True), (440, 40.0, True), (460, 40.0, False), (100, 12.0, False), (10, 7.0, False)],
)
def test_first_words_and_the_rest_fit_into_the_goal(first_token_ms, tokens_per_s, in_time):
    assert measured(SMALL, first_token_ms, tokens_per_s).in_time(1_100) is in_time


@pytest.mark.parametrize(
    ("large_ms", "cores", "said"),
    [
        (100, 4, f"Use {LARGE}: PARLEY_WEIGHTS_QWEN3={LARGE}"),
        (100, 2, f"Use {SMALL}. {LARGE} answers in time by itself"),
        (900, 16, f"Use {SMALL}: "),
    ],
)
def test_larger_model_is_advised_where_it_is_in_time_and_there_are_cores(large_ms, cores, said):
    found = [measured(SMALL, 50, 45.0), measured(LARGE, large_ms, 25.0)]
    assert advise(found, 1_100, cores).startswith(said)


def test_model_elsewhere_is_advised_where_none_is_in_time():
    assert "elsewhere" in advise([measured(SMALL, 900, 45.0)], 1_100, 16)


class Chat:
    """Each answer has a first token after 30 ms or, in a conversation that it knows, 10, and 3 more."""

    def __init__(self):
        self.requests = []

    async def generate(self, request):
        self.requests.append(request)
        await asyncio.sleep(0.03 if len(self.requests) == 1 else 0.01)
        yield TextDelta(text="At ")
        await asyncio.sleep(0.03)
        yield TextDelta(text="eight.")
        yield Completed(finish_reason="stop", completion_tokens=4)


async def test_measurement_holds_one_conversation(monkeypatch):
    chat = Chat()
    now = iter(range(1_000))
    monkeypatch.setattr(advice.time, "perf_counter", lambda: float(next(now)))
    found = await measure(SMALL, chat, AgentConfig())
    # One second passes between two looks at the clock: at the request and at each of the three events.
    assert found == Measured(SMALL, 1_000, 1_000, 1.5)
    last = [message.content for message in chat.requests[-1].messages]
    assert last[2::2] == ["At eight."] * 4
    assert len({request.cache_salt for request in chat.requests}) == 1


def test_command_measures_what_is_here_and_says_what_is_not(monkeypatch, tmp_path, capsys):
    (tmp_path / SMALL).mkdir()
    monkeypatch.setenv("PARLEY_MODELS_DIR", str(tmp_path))
    monkeypatch.setattr(advice, "count_cores", lambda: 2)
    monkeypatch.setattr(advice, "_measure_in_a_process", lambda name: measured(name, 50, 45.0))
    assert advice.main(["--json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert [(one["model"], one["in_time"]) for one in found["models"]] == [(SMALL, True)]
    assert f"make fetch MODEL={LARGE}" in printed.err
    assert advice.main(["--keep"]) == 0
    assert read_advice(tmp_path) == SMALL
    assert "yes (a demonstration: often wrong)" in capsys.readouterr().out


def test_command_fails_where_nothing_can_be_measured(monkeypatch, tmp_path, capsys):
    (tmp_path / SMALL).mkdir()
    monkeypatch.setenv("PARLEY_MODELS_DIR", str(tmp_path))
    assert advice.main([]) == 1  # the folder has no weights
    assert f"{SMALL} cannot be measured" in capsys.readouterr().err


def test_advice_without_a_model_that_could_not_be_measured_holds_for_a_day(monkeypatch, tmp_path):
    (tmp_path / SMALL).mkdir()
    (tmp_path / LARGE).mkdir()
    monkeypatch.setenv("PARLEY_MODELS_DIR", str(tmp_path))
    clock = SimpleNamespace()
    monkeypatch.setattr(larger_model, "time", clock)
    for found, status, kept in (((SMALL,), 0, SMALL), ((), 1, "")):
        monkeypatch.setattr(clock, "time", lambda: 1_000.0, raising=False)
        result = {name: measured(name, 50, 45.0) for name in found}
        monkeypatch.setattr(advice, "_measure_in_a_process", result.get)
        assert advice.main(["--keep"]) == status
        assert read_advice(tmp_path) == kept
        monkeypatch.setattr(clock, "time", lambda: 90_000.0)
        assert read_advice(tmp_path) is None
    monkeypatch.setattr(advice, "_measure_in_a_process", lambda name: measured(name, 50, 45.0))
    assert advice.main(["--keep"]) == 0
    monkeypatch.setattr(clock, "time", lambda: 1e12)
    assert read_advice(tmp_path) is not None


def test_measurement_ends_with_the_command(tmp_path):
    (tmp_path / SMALL).mkdir()
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o755)
    code = (
        "import runpy, sys; sys.executable = sys.argv.pop()\n"
        "runpy.run_module('parley.launcher.advice', run_name='__main__')"
    )
    environment = {**os.environ, "PARLEY_MODELS_DIR": str(tmp_path)}
    command = subprocess.Popen(
        [sys.executable, "-c", code, str(python)], env=environment, stderr=subprocess.DEVNULL
    )
    children = []
    try:
        end = time.monotonic() + 60
        while not any("sleep" in child.cmdline() for child in children):
            children = psutil.Process(command.pid).children()
            assert time.monotonic() < end
            time.sleep(0.01)
        command.terminate()
        assert command.wait(timeout=30) == 128 + signal.SIGTERM
        assert not any(child.is_running() for child in children)
    finally:
        for process in (command, *children):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
