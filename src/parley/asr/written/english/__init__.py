"""The rules of English."""
