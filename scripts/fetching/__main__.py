"""``python -m fetching`` is ``scripts/fetch_models``."""

import signal
import sys

from fetching.main import main

signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a client that runs is ended too
sys.exit(main())
