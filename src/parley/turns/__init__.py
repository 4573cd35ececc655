"""When the user has finished: a pause, how it sounds, and what was said so far."""
