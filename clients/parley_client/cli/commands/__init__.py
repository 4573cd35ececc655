"""The subcommands of ``parley``: each has ``add_arguments`` and ``run``."""
