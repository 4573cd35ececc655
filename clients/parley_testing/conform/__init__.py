"""Checks whether a server, Parley's or another, speaks a protocol as its clients expect."""
