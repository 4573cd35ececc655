"""A fleet of servers on paper: ``make fleet``; docs/reliability.md."""

import sys

from fleet.cli import main  # the package beside this program comes before it

if __name__ == "__main__":
    sys.exit(main())
