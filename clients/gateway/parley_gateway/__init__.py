"""The gateway: every protocol that clients speak, translated to the one of the server."""
