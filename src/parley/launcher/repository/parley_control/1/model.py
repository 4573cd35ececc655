"""Loads models on the launcher's request; see :mod:`parley.triton.model_control`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from parley.triton.model_control import FOLDER_VARIABLE, ControlService, socket_path


class TritonPythonModel:
    """Triton's entry point; see :mod:`parley.triton.model_control`."""

    def initialize(self, args: dict[str, str]) -> None:
        """Listen for the launcher."""
        folder = Path(os.environ[FOLDER_VARIABLE])
        self._service = ControlService(pb_utils, socket_path(folder, args["model_instance_name"]))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Refuse every request: nothing is done for clients."""
        error = pb_utils.TritonError("invalid_request: this model has nothing for clients")
        return [pb_utils.InferenceResponse(error=error) for _ in requests]

    def finalize(self) -> None:
        """Stop listening."""
        self._service.close()
