"""Names what the tests of all suites were skipped for, each thing once.

``summary.py FOLDER`` reads the JUnit files that pytest has written there. A test that lacks something of the
machine is skipped with the reason "needs NAME".
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

_NEEDS = re.compile(r"needs (.+)|could not import '([^'.]+)")


def skips(folder: Path) -> Counter[str]:
    """How many tests were skipped for each reason, in the order of the suites."""
    found: Counter[str] = Counter()
    for path in sorted(folder.glob("*.xml")):
        for skipped in ET.parse(path).iter("skipped"):  # noqa: S314 - pytest has just written it
            if skipped.get("type") == "pytest.skip":
                found[skipped.get("message", "")] += 1
    return found


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
    for line in lines(skips(Path(sys.argv[1]))):
        print(line)
