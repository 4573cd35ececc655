"""The generated reference is the one that the types describe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_committed_reference_is_up_to_date():
    command = [sys.executable, str(ROOT / "build" / "make_protocol_docs.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
