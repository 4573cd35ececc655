"""Parley: the logic of a voice agent that runs inside a Triton model repository.

Nothing in this package imports Triton: the ``model.py`` files under ``model_repository/``
hand Triton's objects to it.

Importing it turns the telemetry of libraries off, because they read that while they are imported
themselves: import it, or a package that does, before ONNX Runtime.
"""

import os

from parley.telemetry import turn_off_telemetry

turn_off_telemetry(os.environ)
