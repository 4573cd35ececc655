"""What "make test" says at its end: what passed only when repeated, and what was skipped, for all suites.

``summary.py FOLDER`` reads the JUnit files that pytest has written there: ``SUITE.xml``, and
``SUITE.again.xml`` of what failed and was repeated. A test that lacks something of the machine is skipped
with the reason "needs NAME". The exit status is 1 where a test failed and was skipped when it was repeated:
pytest counts that as passed.

``summary.py FOLDER --strict SUITE ...`` is for continuous integration. There the exit status is also 1

- where a suite has no report, or ran no test,
- where a test was skipped for a reason that is not in ``skips.txt`` beside this file (a line is a regular
  expression for the whole reason; at most ten lines),
- where a test passed only when it was repeated, in this run and in one of the nine before it. They are the
  lines of ``repeated.txt``, the newest last: the names of such tests, or "-". This run's line is added there,
  and committed with the change that it tested.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

_AGAIN = "*.again.xml"
_NEEDS = re.compile(r"needs (.+)|could not import '([^'.]+)")
_ALLOWED = Path(__file__).with_name("skips.txt")
_MOST_ALLOWED = 10
_REPEATED = Path(__file__).with_name("repeated.txt")
_RUNS = 10


def skips(folder: Path) -> Counter[str]:
    """How many tests were skipped for each reason, in the order of the suites."""
    found: Counter[str] = Counter()
    for path in sorted(set(folder.glob("*.xml")) - set(folder.glob(_AGAIN))):
        for skipped in ET.parse(path).iter("skipped"):  # noqa: S314 - pytest has just written it
            if skipped.get("type") == "pytest.skip":
                found[skipped.get("message", "")] += 1
    return found


def repeated(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the tests that failed, and passed when they were repeated; and of those skipped then."""
    passed, skipped = [], []
    for path in sorted(folder.glob(_AGAIN)):
        for case in ET.parse(path).iter("testcase"):  # noqa: S314 - pytest has just written it
            outcomes = {child.tag for child in case} & {"failure", "error", "skipped"}
            name = f"{case.get('classname')}::{case.get('name')}"
            if not outcomes:
                passed.append(name)
            elif outcomes == {"skipped"}:
                skipped.append(name)
    return passed, skipped


def lines(found: Counter[str]) -> list[str]:
    """What is printed: a line for what is missing, and one for each other reason."""
    missing: Counter[str] = Counter()
    others = []
    for reason, count in found.items():
        if needs := _NEEDS.match(reason):
            missing[needs[1] or needs[2]] += count
        else:
            others.append(f"not run, {_tests(count)}: {reason}")
    named = ", ".join(f"{name} ({_tests(count)})" for name, count in missing.items())
    return [*([f"not run for want of: {named}"] if missing else []), *others]


def not_run(folder: Path, suites: list[str]) -> list[str]:
    """The suites without a report, or without a test that was run."""

    def ran(path: Path) -> bool:
        cases = ET.parse(path).iter("testcase") if path.is_file() else ()  # noqa: S314 - pytest wrote it
        return any(case.find("skipped") is None for case in cases)

    return [suite for suite in suites if not ran(folder / f"{suite}.xml")]


def not_allowed(found: Counter[str]) -> list[str]:
    """The reasons of skipped tests that ``skips.txt`` does not have."""
    allowed = [re.compile(line) for line in _ALLOWED.read_text("utf-8").splitlines()]
    if len(allowed) > _MOST_ALLOWED:
        raise SystemExit(f"error: {_ALLOWED} has {len(allowed)} lines; at most {_MOST_ALLOWED} are read")
    return [reason for reason in found if not any(line.fullmatch(reason) for line in allowed)]


def record(passed: list[str]) -> list[str]:
    """Add this run to ``repeated.txt``; the tests that were repeated in an earlier run too.

    Names have no white space in the file: a parameter may have some.
    """
    names = ["_".join(name.split()) for name in passed]
    runs = _REPEATED.read_text("utf-8").splitlines()[-(_RUNS - 1) :]
    _REPEATED.write_text("\n".join([*runs, " ".join(names) or "-"]) + "\n", "utf-8")
    before = {name for run in runs for name in run.split()}
    return [name for name in names if name in before]


def _tests(count: int) -> str:
    return "1 test" if count == 1 else f"{count} tests"


def main() -> int:
    """Print the summary."""
    parser = argparse.ArgumentParser(description="What make test says at its end.")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--strict", nargs="+", default=[], metavar="SUITE", help="what has to have been run")
    args = parser.parse_args()
    passed, skipped = repeated(args.folder)
    found = skips(args.folder)
    for name in passed:
        print(f"failed, and passed when it was repeated: {name}")
    for name in skipped:
        print(f"failed, and was skipped when it was repeated: {name}")
    for line in lines(found):
        print(line)
    if not args.strict:
        return 1 if skipped else 0
    errors = [f"no test of the suite {suite} was run" for suite in not_run(args.folder, args.strict)]
    errors += [f"tests/skips.txt has no line for: {reason}" for reason in not_allowed(found)]
    errors += [f"to be mended, repeated twice in the last {_RUNS} runs: {name}" for name in record(passed)]
    for error in errors:
        print(f"error: {error}")
    return 1 if skipped or errors else 0


if __name__ == "__main__":
    sys.exit(main())
