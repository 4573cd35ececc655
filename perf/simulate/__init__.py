"""Simulated callers: scenarios, their sound, the conversation in real time, and what it scored."""
