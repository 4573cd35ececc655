"""How many calls a server holds: callers, their statistics, the search and what follows for a fleet."""
