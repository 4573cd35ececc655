"""``make bench-frameworks``: both kinds of services yield figures, and a load without any is an error."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from conftest import PYTHON, ROOT

sys.path.append(str(ROOT / "perf"))

from frameworks.sessions import NothingMeasuredError, Waits

WORKER = ROOT / "perf" / "frameworks" / "worker.py"
LIMIT_S = 170.0
FIGURES = {"stt": [1.0], "llm": [2.0], "tts": [3.0], "total": [6.0]}


def measure(*which):
    """The figures of one caller."""
    command = [str(PYTHON), str(WORKER), "--sessions", "1", "--turns", "3", "--fewest", "3", *which]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2_000:]
    (level,) = (json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"sessions"'))
    return level


def check(level):
    assert level["wrong"] == 0
    turns = len(level["total"])
    assert turns == len(level["stt"]) > 0
    # The question about the weather has two requests, one of them without words.
    assert len(level["llm"]) >= turns
    assert len(level["tts"]) >= turns
    assert min(level["stt"] + level["llm"] + level["tts"] + level["total"]) > 0


def test_a_session_with_the_models_in_its_process_yields_figures():
    check(measure())


def test_a_session_with_the_models_of_a_server_yields_figures(triton):
    check(measure("--server", triton, "--interim"))


@pytest.mark.parametrize("name", FIGURES)
def test_a_load_that_lacks_figures_is_an_error(name):
    Waits(**FIGURES).check()
    with pytest.raises(NothingMeasuredError, match=f"no figure for {name}"):
        Waits(**(FIGURES | {name: []})).check()
