"""Where the fakes behind an attacked gateway are."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [
    str(HERE),
    str(HERE.parent / "fuzz"),
    str(HERE.parents[1] / "client"),
    str(HERE.parent / "core"),
    str(HERE.parent / "twilio"),
    str(HERE.parent / "stages"),
]
