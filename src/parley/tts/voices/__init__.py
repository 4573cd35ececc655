"""Voices of Chatterbox: what is kept of a speaker, where it is kept, and how it is made."""
