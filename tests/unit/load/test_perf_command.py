"""The command of all measurements."""

from __future__ import annotations

import importlib.util
import re
import runpy
import subprocess
import sys

import pytest
from harness.program import run_program

from parley.errors import ParleyError
from parley.launcher.options import ROOT

PROGRAMS = runpy.run_path(str(ROOT / "perf" / "__main__.py"))["_PROGRAMS"]


def run(*arguments):
    command = [sys.executable, "-m", "perf", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", PROGRAMS.values())
def test_each_program_is_a_module_with_a_main(module):
    found = importlib.util.find_spec(module)
    assert found is not None
    source = found.loader.get_source(module)
    assert re.search(r"^def main\(", source, re.MULTILINE)


def test_make_calls_programs_by_names_that_exist():
    called = set(re.findall(r"-m perf ([a-z-]+)", (ROOT / "Makefile").read_text()))
    assert called
    assert called <= PROGRAMS.keys()


def test_a_program_gets_its_options_under_its_name():
    done = run("chaos", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: chaos ")


@pytest.mark.parametrize("arguments", [(), ("choas",)])
def test_an_unknown_name_is_refused_with_the_names(arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert "bench-stages" in done.stderr


@pytest.mark.parametrize(
    ("failure", "status", "said"),
    [
        (ParleyError("no server"), 1, "soak: no server"),
        (LookupError("no file"), 1, "soak: no file"),
        (KeyboardInterrupt(), 130, "Interrupted."),
    ],
)
def test_a_failure_is_said_by_name_and_has_its_status(failure, status, said, capsys):
    def program(_):
        raise failure

    assert run_program("soak", program, LookupError) == status
    assert capsys.readouterr().out.strip() == said


def test_a_failure_that_was_not_expected_is_raised():
    def program(_):
        raise LookupError

    with pytest.raises(LookupError):
        run_program("soak", program)
