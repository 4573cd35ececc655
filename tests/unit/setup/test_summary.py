"""What is said at the end of "make test"."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SUMMARY = Path(__file__).parents[2] / "summary.py"
TESTS = """
import pytest

@pytest.mark.parametrize("number", [1, 2])
def test_shared(number):
    pytest.skip("needs redis-server")

def test_imported():
    pytest.importorskip("no_such_package")

def test_other():
    pytest.skip("its weights are not there")

@pytest.mark.xfail
def test_known():
    assert False

def test_run():
    pass
"""


def summary(folder):
    return subprocess.run(
        [sys.executable, str(SUMMARY), str(folder)], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def test_each_missing_thing_is_named_once_for_all_suites(tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)
    for suite in ("one", "two"):
        report = f"--junit-xml={tmp_path / 'reports' / suite}.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(tmp_path)]
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider", report, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        )
        assert done.returncode == 0, done.stdout
    assert summary(tmp_path / "reports").splitlines() == [
        "not run for want of: redis-server (4 tests), no_such_package (2 tests)",
        "not run, 2 tests: its weights are not there",
    ]


UNSTEADY = """
from pathlib import Path

RUNS = Path(__file__).with_name("runs")

def test_steady():
    pass

def test_unsteady():
    RUNS.write_text(RUNS.read_text() + "x" if RUNS.exists() else "x")
    assert len(RUNS.read_text()) > 1
"""


def test_what_passed_only_when_it_was_repeated_is_named(tmp_path):
    (tmp_path / "test_some.py").write_text(UNSTEADY)
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    for report, again in (("suite.xml", []), ("suite.again.xml", ["--last-failed"])):
        done = subprocess.run(
            [*command, f"--junit-xml={tmp_path / 'reports' / report}", *again, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        )
        assert done.returncode == (0 if again else 1), done.stdout
    assert summary(tmp_path / "reports").splitlines() == [
        "failed, and passed when it was repeated: test_some::test_unsteady"
    ]


def test_nothing_is_said_where_all_was_run(tmp_path):
    assert summary(tmp_path) == ""
