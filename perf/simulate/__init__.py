"""Simulated callers of the project: their scenarios, and what calls scored."""
