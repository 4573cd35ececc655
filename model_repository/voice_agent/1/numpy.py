"""Found only where numpy is not installed: the folder of a model comes last on its path.

Triton's own module imports numpy before ``model.py`` runs, which could otherwise not give the remedy.
"""

from missing_packages import describe

raise ImportError(describe("numpy"))
