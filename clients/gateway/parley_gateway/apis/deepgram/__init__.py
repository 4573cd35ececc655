"""Deepgram's API for single stages: recognition and speech."""
