"""Whole recordings to transcripts."""
