"""Settings of all unit tests."""

from hypothesis import settings

# Machines differ: no example fails because it took long.
settings.register_profile("unit", deadline=None)
settings.load_profile("unit")
