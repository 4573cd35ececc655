"""Recognition by Parakeet: networks, and the rail that decodes every utterance as a whole."""
