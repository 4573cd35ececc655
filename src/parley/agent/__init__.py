"""The conversation: sessions, turns, history and playout."""
