"""Chatterbox checkpoints: small ones for tests, and real ones made ready for serving."""
