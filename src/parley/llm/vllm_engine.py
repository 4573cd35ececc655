"""vLLM's synchronous engine behind the project's interface."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from parley.errors import ParleyError
from parley.llm.engine import Identified, Translation
from parley.llm.inprocess import Report

RequestT = TypeVar("RequestT", bound=Identified)


class VllmEngine(Generic[RequestT]):
    """:class:`SteppedEngine` over vLLM's ``LLMEngine``.

    Args:
        engine_args: vLLM's ``EngineArgs``.
        translation: of the engine's requests.
    """

    def __init__(self, engine_args: Any, translation: Translation[RequestT]) -> None:
        # Importing vLLM takes seconds and needs a prepared environment.
        from vllm.v1.engine.llm_engine import LLMEngine  # noqa: PLC0415

        from parley.llm.vllm_types import REFUSALS  # noqa: PLC0415

        self._refusals = REFUSALS
        self._translation = translation
        self._engine = LLMEngine.from_engine_args(engine_args)
        self.max_model_len: int = self._engine.model_config.max_model_len

    def add(self, request: RequestT) -> None:
        """Queue a request; raises ``ValueError`` if vLLM will never run it."""
        prompt, sampling = self._translation.prompt(request), self._translation.sampling(request)
        try:
            self._engine.add_request(request.request_id, prompt, sampling, priority=request.priority)
        except self._refusals as error:
            raise ValueError(str(error)) from error

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
            return self._translation.read(output)
        except ParleyError as error:
            return error
