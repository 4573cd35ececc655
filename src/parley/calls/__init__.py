"""What is kept of calls, and who learns of them: recordings, their list, and webhooks."""
