"""Check another Triton; see --help."""

import sys

from triton_check.cli import main

if __name__ == "__main__":
    sys.exit(main())
