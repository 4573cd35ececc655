"""Where the gateway in front of fakes is."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [
    str(HERE),
    str(HERE.parent / "fuzz"),
    str(HERE.parents[1] / "client"),
    str(HERE.parent / "core"),
    str(HERE.parent / "twilio"),
]
