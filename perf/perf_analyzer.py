"""Drives the models with Triton's own perf_analyzer, and reads its profile export: ``make perf-analyzer``.

What is sent to each model, what the columns mean and where the program's own figures mislead:
docs/perf-analyzer.md.
"""

import sys

from perf_analyzer.cli import main  # the package beside this program comes before it

if __name__ == "__main__":
    sys.exit(main())
