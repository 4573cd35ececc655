"""The version of the plugin."""

__version__ = "0.2.0"
