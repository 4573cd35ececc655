"""Models that cannot serve, in a server without the launcher.

The launcher leaves such models out. A plain ``tritonserver --model-repository=model_repository`` loads every
folder, and ends when one of them fails: so such a model loads, and refuses its requests with the reason. That
is one that the profile does not have, that lacks weights, a package or a GPU, or that fails otherwise.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from parley.errors import ModelLoadingError, NotInProfileError, ParleyError, WeightsNotFoundError
from parley.runtime.gpu_plan import NotPlannedError
from parley.runtime.parameters import LOADED_MODELS_VARIABLE
from parley.runtime.repository import config_path
from parley.triton.observability import log_to_triton
from parley.triton.responses import Responder, make_error
from parley.triton.server_flags import ServerFlags, read_server_flags

ModelT = TypeVar("ModelT", bound=type[Any])
_log = logging.getLogger(__name__)


def loads_or_refuses(pb_utils: Any) -> Callable[[ModelT], ModelT]:
    """A decorator of ``TritonPythonModel``, whose ``initialize`` may fail and imports what it needs.

    The log of this process becomes Triton's. Under the launcher an error remains one: the launcher leaves
    optional models out, and reports the others.
    """

    def decorate(model: ModelT) -> ModelT:
        initialize, execute = model.initialize, model.execute
        finalize = getattr(model, "finalize", None)

        def initialize_or_refuse(self: Any, args: dict[str, str]) -> None:
            log_to_triton(pb_utils, args["model_name"])
            self._refusal = None
            if LOADED_MODELS_VARIABLE in os.environ:
                initialize(self, args)
                return
            try:
                _check_profile(args, read_server_flags())
                initialize(self, args)
            except (NotInProfileError, WeightsNotFoundError, NotPlannedError) as error:
                _log.warning("every request is refused: %s", error)
                self._refusal = _Refusal(pb_utils, args, error)
            except Exception as error:  # noqa: BLE001 - logged; the other models serve
                _log.exception("%s cannot serve, every request is refused", args["model_name"])
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


def _check_profile(args: Mapping[str, str], flags: ServerFlags | None) -> None:
    """Refuse a model that would only take memory.

    Raises:
        NotInProfileError: the profile has no configuration for it, or has it on request only.
    """
    model = args["model_name"]
    if flags is None or model in flags.models:
        return
    folder = Path(args["model_repository"])
    if not config_path(folder, flags.profile).is_file():
        raise NotInProfileError(f"{model} is not part of the profile {flags.profile}")
    parameters = json.loads(args["model_config"]).get("parameters", {})
    if parameters.get("on_request", {}).get("string_value") == "true":
        raise NotInProfileError(
            f"{model} is part of the profile {flags.profile} only where --load-model names it"
        )


class _Refusal:
    """Answers every request of a model with one error."""

    def __init__(self, pb_utils: Any, args: dict[str, str], error: Exception) -> None:
        self._pb = pb_utils
        self._error = _for_clients(args["model_name"], error)
        policy = json.loads(args["model_config"]).get("model_transaction_policy", {})
        self._is_decoupled = bool(policy.get("decoupled"))

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Refuse the requests."""
        if not self._is_decoupled:
            return [make_error(self._pb, self._error) for _ in requests]
        for request in requests:
            Responder(self._pb, request).fail(self._error)
        return None


def _for_clients(model: str, error: Exception) -> ParleyError:
    """The error without the names of folders."""
    if isinstance(error, (NotInProfileError, NotPlannedError)):
        return error
    if isinstance(error, WeightsNotFoundError):
        return WeightsNotFoundError(f"{model} has no weights on this server, whose log has the remedy")
    return ModelLoadingError(f"{model} cannot serve on this server, whose log has the reason")
