"""``python -m fetching`` is ``scripts/fetch_models``."""

import signal
import sys

from fetching.main import main

# As on Ctrl-C: a client that runs is ended too.
signal.signal(signal.SIGTERM, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup leaves it
    signal.signal(signal.SIGHUP, signal.default_int_handler)
sys.exit(main())
