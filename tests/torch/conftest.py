"""Settings of all tests of parley_torch."""

from hypothesis import settings

# Machines differ: no example fails because it took long.
settings.register_profile("torch", deadline=None)
settings.load_profile("torch")
