"""Recognition while it is being spoken, by a cache-aware encoder."""
