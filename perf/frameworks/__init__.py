"""Pipecat with the models in its own process, and with Parley's server."""
