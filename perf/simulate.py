"""Callers made of recorded and synthetic speech talk to the real server and judge it: ``make simulate``.

What a scenario may say and what every figure means: docs/simulator.md.
"""

import sys

from simulate.cli import main  # the package beside this program comes before it

if __name__ == "__main__":
    sys.exit(main())
