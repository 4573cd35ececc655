"""Parley: the logic of a voice agent that runs inside a Triton model repository.

Nothing in this package imports Triton: the ``model.py`` files under ``model_repository/``
hand Triton's objects to it.

Importing it turns the telemetry of libraries off, because they read that while they are imported
themselves: import it, or a package that does, before ONNX Runtime.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

TELEMETRY_OFF: Mapping[str, str] = {
    # ONNX Runtime writes a device id into the home folder and sends events. It reads this while it is
    # imported; its function disable_telemetry_events comes too late for the files.
    "ORT_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
"""Environment variables of the libraries."""


def turn_off_telemetry(environment: MutableMapping[str, str]) -> None:
    """Set the variables, before the libraries are imported; values of the operator stay."""
    for name, value in TELEMETRY_OFF.items():
        environment.setdefault(name, value)


turn_off_telemetry(os.environ)
