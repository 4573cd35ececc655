"""Recognition whose networks, caches, features and decoding stay on a torch device."""
