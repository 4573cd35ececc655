"""Sessions by REST, and their streams by WebSocket."""
