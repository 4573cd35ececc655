"""What is said at the end of "make test"."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SUMMARY = ROOT / "tests" / "summary.py"
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


def run_pytest(folder, *options):
    """Run the tests of ``folder``, without this project's settings and plugins."""
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(folder)]
    return subprocess.run(
        [*command, *options, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )


def summary(folder, status=0, *, program=SUMMARY, strict=()):
    command = [sys.executable, str(program), str(folder), *(["--strict", *strict] if strict else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_each_missing_thing_is_named_once_for_all_suites(tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)
    for suite in ("one", "two"):
        report = f"--junit-xml={tmp_path / 'reports' / suite}.xml"
        done = run_pytest(tmp_path, "-p", "no:cacheprovider", report)
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


def test_tests_that_passed_when_repeated_are_named(tmp_path):
    (tmp_path / "test_some.py").write_text(UNSTEADY)
    for report, again in (("suite.xml", []), ("suite.again.xml", ["--last-failed"])):
        done = run_pytest(tmp_path, f"--junit-xml={tmp_path / 'reports' / report}", *again)
        assert done.returncode == (0 if again else 1), done.stdout
    assert summary(tmp_path / "reports").splitlines() == [
        "failed, and passed when it was repeated: test_some::test_unsteady"
    ]


FAILING_ONCE = """
import os
from pathlib import Path
import pytest

RUNS = Path(__file__).with_name("runs")
IS_FIRST = not RUNS.exists()
RUNS.touch()
CASE = "{case}"

if CASE == "collection" and IS_FIRST:
    raise ImportError

def test_unsteady():
    assert not IS_FIRST or CASE != "skipped"
    if CASE == "skipped":
        pytest.skip("needs redis-server")

def test_crash():
    if CASE == "crash" and IS_FIRST:
        os._exit(1)
"""
OTHER = """
def test_broken():
    assert {passes}
"""


def run_suite(folder, *variables):
    """Run the tests of ``folder`` with the options that the Makefile gives to a suite; the exit status."""
    command = ["make", "--dry-run", "--directory", str(ROOT), "test-browser", *variables]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    (line,) = (line for line in printed.splitlines() if "pytest tests/browser" in line)
    return run_pytest(folder, *shlex.split(line)[4:]).returncode


@pytest.mark.parametrize(
    ("case", "passes", "statuses"),
    [
        ("crash", True, (1, 5)),
        ("collection", True, (1, 0)),
        ("collection", False, (1, 1)),
        ("skipped", True, (1, 0)),
    ],
)
def test_a_suite_is_not_passed_by_a_part_of_it(tmp_path, case, passes, statuses):
    (tmp_path / "test_some.py").write_text(FAILING_ONCE.format(case=case))
    (tmp_path / "test_other.py").write_text(OTHER.format(passes=passes))
    reports = tmp_path / "reports"
    # An earlier run by hand has failed with a test that passes now.
    stale = tmp_path / ".pytest_cache" / "v" / "cache" / "lastfailed"
    stale.parent.mkdir(parents=True)
    stale.write_text('{"test_some.py::test_unsteady": true}')
    first = run_suite(tmp_path, f"REPORT={reports / 'suite.xml'}")
    again = run_suite(tmp_path, f"REPORT={reports / 'suite.again.xml'}", "REPEAT=1")
    assert (first, again) == statuses
    if case == "skipped":
        assert "skipped when it was repeated: test_some::test_unsteady" in summary(reports, status=1)


def test_summary_of_a_complete_run_is_empty(tmp_path):
    assert summary(tmp_path) == ""


# --- continuous integration -----------------------------------------------------------------


class Strict:
    """The program with lists of its own, and reports of one suite, ``one``."""

    def __init__(self, folder):
        self._folder = folder
        self.program = Path(shutil.copy(SUMMARY, folder / "summary.py"))
        self.skips = folder / "skips.txt"
        self.repeated = folder / "repeated.txt"
        self.repeated.write_text("-\n")

    def report(self, *cases, suite="one"):
        """Write a report: names of tests with what is within them, empty for passed ones."""
        body = "".join(
            f'<testcase classname="test_some" name="{name}">{found}</testcase>' for name, found in cases
        )
        (self._folder / f"{suite}.xml").write_text(f"<testsuites><testsuite>{body}</testsuite></testsuites>")

    def run(self, status, *suites):
        """The errors that are printed."""
        printed = summary(self._folder, status, program=self.program, strict=suites or ["one"])
        return [line for line in printed.splitlines() if line.startswith("error: ")]


def skipped(reason):
    return f'<skipped type="pytest.skip" message="{reason}">x</skipped>'


@pytest.fixture
def strict(tmp_path):
    made = Strict(tmp_path)
    made.skips.write_text("needs a GPU.*\n")
    return made


def test_strict_summary_with_listed_skips_passes(strict):
    strict.report(("test_a", ""), ("test_b", skipped("needs a GPU, or two")))
    assert strict.run(0) == []


@pytest.mark.parametrize("reason", ["needs redis-server", "it needs a GPU", ""])
def test_strict_summary_with_another_skip_fails(strict, reason):
    strict.report(("test_a", ""), ("test_b", skipped(reason)))
    assert strict.run(1) == [f"error: tests/skips.txt has no line for: {reason}"]


def test_strict_summary_with_a_long_list_of_skips_fails(strict):
    strict.report(("test_a", ""))
    strict.skips.write_text("needs a GPU.*\n" * 11)
    assert strict.run(1) == []


@pytest.mark.parametrize("cases", [None, [], [("test_a", skipped("needs a GPU"))]])
def test_strict_summary_without_a_run_test_of_a_suite_fails(strict, cases):
    strict.report(("test_a", ""))
    if cases is not None:
        strict.report(*cases, suite="two")
    assert strict.run(1, "one", "two") == ["error: no test of the suite two was run"]


def test_strict_summary_with_a_test_repeated_in_two_of_ten_runs_fails(strict):
    strict.report(("test_a", ""))
    strict.report(("test_a[x y]", ""), ("test_b", ""), suite="one.again")
    assert strict.run(0) == []
    names = "test_some::test_a[x_y] test_some::test_b"
    assert strict.repeated.read_text() == f"-\n{names}\n"
    strict.report(("test_a[x y]", ""), suite="one.again")
    error = "error: to be mended, repeated twice in the last 10 runs: test_some::test_a[x_y]"
    assert strict.run(1) == [error]
    strict.repeated.write_text(f"{names}\n" + "-\n" * 8)
    assert strict.run(1) == [error]
    strict.repeated.write_text(f"{names}\n" + "-\n" * 9)
    assert strict.run(0) == []
    assert strict.repeated.read_text() == "-\n" * 9 + "test_some::test_a[x_y]\n"
