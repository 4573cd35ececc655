"""An installation on one machine that is disturbed under calls: ``make cluster``; docs/reliability.md."""

import sys

from cluster.cli import main  # the package beside this program comes before it

if __name__ == "__main__":
    sys.exit(main())
