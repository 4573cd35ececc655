"""Load from callers by gRPC and by the gateway's WebSocket: ``make load USERS=… MINUTES=…``; docs/load.md."""

import sys

from load.cli import main  # the package beside this program comes before it

if __name__ == "__main__":
    sys.exit(main())
