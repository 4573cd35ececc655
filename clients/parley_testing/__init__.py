"""Simulated callers: scenarios, their sound, the conversation in real time, and what is to come of it."""
