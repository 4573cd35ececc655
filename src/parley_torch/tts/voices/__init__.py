"""Voices of Chatterbox: their files, their stores, and their enrollment from recordings."""
