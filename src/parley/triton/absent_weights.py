"""Models whose weights are not there, or for which the GPU has no memory, in a server without the launcher.

The launcher leaves such models out. A plain ``tritonserver --model-repository=model_repository`` loads every
model, and ends when one of them fails: so such a model loads, and refuses its requests with the reason.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from typing import Any, TypeVar

from parley.errors import ParleyError, WeightsNotFoundError
from parley.runtime.gpu_plan import NotPlannedError
from parley.runtime.parameters import LOADED_MODELS_VARIABLE
from parley.triton.responses import Responder, make_error

ModelT = TypeVar("ModelT", bound=type[Any])
_log = logging.getLogger(__name__)


def loads_without_weights(pb_utils: Any) -> Callable[[ModelT], ModelT]:
    """A decorator of ``TritonPythonModel``, whose ``initialize`` may raise :class:`WeightsNotFoundError`.

    :class:`parley.runtime.gpu_plan.NotPlannedError` counts as such. Under the launcher it remains an error:
    the launcher leaves optional models out, and reports the others.
    """

    def decorate(model: ModelT) -> ModelT:
        initialize, execute = model.initialize, model.execute
        finalize = getattr(model, "finalize", None)

        def initialize_or_refuse(self: Any, args: dict[str, str]) -> None:
            self._refusal = None
            try:
                initialize(self, args)
            except (WeightsNotFoundError, NotPlannedError) as error:
                if LOADED_MODELS_VARIABLE in os.environ:
                    raise
                _log.warning("loaded without its networks, every request is refused: %s", error)
                self._refusal = _Refusal(pb_utils, args, error)

        def execute_or_refuse(self: Any, requests: list[Any]) -> Any:
            return execute(self, requests) if self._refusal is None else self._refusal.execute(requests)

        def finalize_loaded(self: Any) -> None:
            if self._refusal is None and finalize is not None:
                finalize(self)

        model.initialize = initialize_or_refuse
        model.execute = execute_or_refuse
        model.finalize = finalize_loaded
        return model

    return decorate


class _Refusal:
    """Answers every request of a model with one error."""

    def __init__(self, pb_utils: Any, args: dict[str, str], error: ParleyError) -> None:
        self._pb = pb_utils
        model = args["model_name"]
        self._error = error
        if isinstance(error, WeightsNotFoundError):  # which names folders
            text = f"{model} has no weights on this server, whose log has the remedy"
            self._error = WeightsNotFoundError(text)
        policy = json.loads(args["model_config"]).get("model_transaction_policy", {})
        self._is_decoupled = bool(policy.get("decoupled"))

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Refuse the requests."""
        if not self._is_decoupled:
            return [make_error(self._pb, self._error) for _ in requests]
        for request in requests:
            Responder(self._pb, request).fail(self._error)
        return None
