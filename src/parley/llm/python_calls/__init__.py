"""Tool calls written as calls of Python functions, for models that know Python better than tags and JSON."""
