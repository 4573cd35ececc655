"""What the command ``parley`` shows."""
