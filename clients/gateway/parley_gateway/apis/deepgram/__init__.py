"""Deepgram's API: recognition, speech, turns and conversations."""
