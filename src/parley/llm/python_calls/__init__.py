"""Tool calls written as calls of Python functions, for models that write Python better than tags and JSON."""
