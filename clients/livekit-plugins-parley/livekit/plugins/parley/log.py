"""The plugin's log."""

import logging

logger = logging.getLogger("livekit.plugins.parley")
