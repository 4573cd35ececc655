"""The language model: engines, chat format, tool calls."""
