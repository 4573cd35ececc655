"""Recognition by Parakeet: networks, and the pipeline that decodes every utterance as a whole."""
