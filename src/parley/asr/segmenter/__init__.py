"""Streams of audio to utterances, and the utterances of a turn."""
