"""The command ``parley`` and the player of scripted conversations that it and measurements use."""

from __future__ import annotations

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
"""The checkout that the client is part of; an unrelated folder if the client is installed."""
