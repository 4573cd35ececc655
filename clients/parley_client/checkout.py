"""The checkout that the client is part of."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
"""Where this file lies in a checkout; anywhere, if the client is installed."""
