"""Faults under running calls, and what the callers notice of them."""
