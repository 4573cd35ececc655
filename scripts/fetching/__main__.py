"""``python -m fetching`` is ``scripts/fetch_models``."""

import sys

from fetching.main import main

sys.exit(main())
