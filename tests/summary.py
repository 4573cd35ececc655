"""Names the tests that passed only when repeated, and once for all suites what others were skipped for.

``summary.py FOLDER`` reads the JUnit files that pytest has written there: ``SUITE.xml``, and
``SUITE.again.xml`` of what failed and was repeated. A test that lacks something of the machine is skipped
with the reason "needs NAME". The exit status is 1 where a test failed and was skipped when it was repeated:
pytest counts that as passed.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

_AGAIN = "*.again.xml"
_NEEDS = re.compile(r"needs (.+)|could not import '([^'.]+)")


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


def _tests(count: int) -> str:
    return "1 test" if count == 1 else f"{count} tests"


if __name__ == "__main__":
    reports = Path(sys.argv[1])
    passed, skipped = repeated(reports)
    for name in passed:
        print(f"failed, and passed when it was repeated: {name}")
    for name in skipped:
        print(f"failed, and was skipped when it was repeated: {name}")
    for line in lines(skips(reports)):
        print(line)
    sys.exit(1 if skipped else 0)
