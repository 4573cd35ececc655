"""Comparing streaming recognisers: each behind the same small interface, in a process of its own."""
