"""A package, so that its server is stopped after its last test, before those of other folders."""
