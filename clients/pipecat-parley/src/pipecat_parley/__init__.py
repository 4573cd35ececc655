"""Pipecat services for a Parley server."""
