"""Downloading weights: see scripts/fetch_models --help."""
