"""Endpoints by protocol: a file for each, and the table of all of them."""
