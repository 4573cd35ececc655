"""Several servers and gateways on one machine, each in a network namespace of its own."""
