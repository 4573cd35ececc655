"""The page's modules without a page: resampling, the jitter buffer, marks, the transcript."""

from __future__ import annotations

import subprocess
from pathlib import Path

from playwright._impl._driver import compute_driver_executable

HERE = Path(__file__).parent


def test_the_modules_pass_their_own_tests():
    # The driver's own Node: there need be no other.
    node, _ = compute_driver_executable()
    tests = sorted(str(path) for path in (HERE / "js").glob("*.test.js"))
    assert tests
    done = subprocess.run([node, "--test", *tests], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
