"""vLLM's synchronous engine behind the project's interface."""

from __future__ import annotations

from typing import Any

from parley.errors import ParleyError
from parley.llm.engine import EngineRequest
from parley.llm.inprocess import Report


class VllmEngine:
    """:class:`SteppedEngine` over vLLM's ``LLMEngine``.

    Args:
        engine_args: vLLM's ``EngineArgs``.
    """

    def __init__(self, engine_args: Any) -> None:
        # Importing vLLM takes seconds and needs a prepared environment.
        from vllm.v1.engine.llm_engine import LLMEngine  # noqa: PLC0415

        from parley.llm import vllm_types  # noqa: PLC0415

        self._types = vllm_types
        self._engine = LLMEngine.from_engine_args(engine_args)
        self.max_model_len: int = self._engine.model_config.max_model_len

    def add(self, request: EngineRequest) -> None:
        """Queue a request."""
        prompt = {"prompt_token_ids": list(request.prompt)}
        self._engine.add_request(request.request_id, prompt, self._types.sampling_params(request))

    def abort(self, request_id: str) -> None:
        """Forget a request."""
        self._engine.abort_request([request_id])

    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._engine.has_unfinished_requests())

    def step(self) -> list[tuple[str, Report]]:
        """Advance all running requests by one step."""
        return [(output.request_id, self._read(output)) for output in self._engine.step()]

    def close(self) -> None:
        """Free the engine."""
        self._engine.engine_core.shutdown()

    def _read(self, output: Any) -> Report:
        try:
            return self._types.read_output(output)
        except ParleyError as error:
            return error
