"""Parakeet: networks, the pipeline that decodes every utterance as a whole, and the reader of recordings."""
