"""Voices of people: which utterances are the same person's."""
