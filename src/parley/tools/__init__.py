"""Tools that the language model may call: their schemas, and those that the server runs itself."""
