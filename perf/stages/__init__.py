"""Single stages and whole calls of any voice stack, measured alike."""
