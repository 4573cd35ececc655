"""Voice activity: from speech probabilities to the start and end of what a user says."""
