"""Agents that are defined in files, which sessions choose by name."""
