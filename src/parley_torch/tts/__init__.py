"""Chatterbox: its language model, its vocoder, its voices and the watermark of its speech."""
