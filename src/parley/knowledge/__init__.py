"""Documents of an agent: found by patterns, cut into passages, indexed and searched."""
