"""The command ``parley`` and the player of scripted conversations that it and measurements use."""

from __future__ import annotations

import os
from pathlib import Path

from parley.python import parley_command

CHECKOUT = Path(__file__).resolve().parents[3]
"""The checkout that the client is part of; an unrelated folder if the client is installed."""
PARLEY = parley_command(CHECKOUT, os.environ)
"""The command itself, as hints name it."""
