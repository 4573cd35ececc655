"""Faults under running calls, and what the callers notice of them: ``make chaos``; docs/reliability.md.

Two servers of the profile tiny, two gateways, a Redis and a collector of traces run in network namespaces.
Calls are held with all of them, each about a city of its own, while one fault after the other is caused. The
callers check that no call was touched that does not depend on it, that none got what is another's, that
everything ends, and that new calls are answered soon after it. It needs root.
"""

import sys

from chaos.cli import main  # the package beside this program comes before it

if __name__ == "__main__":
    sys.exit(main())
