"""Stages and whole calls of any voice stack, measured alike: ``make bench-stages``; docs/benchmarks.md."""

from __future__ import annotations

import sys

from stages.cli import main

if __name__ == "__main__":
    sys.exit(main())
