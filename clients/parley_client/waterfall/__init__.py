"""Where the time of a call went: read from a trace, or from the events that a client recorded."""
