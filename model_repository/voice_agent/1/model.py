"""The agent: one sequence is one conversation; see :mod:`parley.protocol` for what is said."""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

try:
    from parley.models.voice_agent import AgentService
    from parley.runtime.parameters import Parameters
    from parley.triton.observability import log_to_triton
except ModuleNotFoundError as error:
    from missing_packages import describe

    raise ImportError(describe(error.name or "")) from error


class TritonPythonModel:
    """Triton's entry point; see :mod:`parley.agent` for what it runs."""

    def initialize(self, args: dict[str, str]) -> None:
        """Get ready for conversations."""
        log_to_triton(pb_utils, args["model_name"])
        self._service = AgentService(pb_utils, Parameters.from_args(args))

    def execute(self, requests: list[Any]) -> None:
        """Hand the requests over; they are answered by the conversations they belong to."""
        self._service.submit(requests)

    def finalize(self) -> None:
        """End all conversations."""
        self._service.close()
