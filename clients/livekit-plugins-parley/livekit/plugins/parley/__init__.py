"""Parley plugin for LiveKit Agents."""

from .version import __version__

__all__ = ["__version__"]
