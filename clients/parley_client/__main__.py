"""``python -m parley_client`` is the command ``parley``."""

import sys

from parley_client.cli.program import main

sys.exit(main())
