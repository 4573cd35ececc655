"""``TritonPythonModel`` of a model folder: Triton's calls to a model of :mod:`parley.models`.

The launcher leaves models out that cannot serve. A plain ``tritonserver --model-repository=model_repository``
loads every folder, and ends when one of them fails: so such a model loads, and refuses its requests with the
reason. That is one that the profile does not have, that lacks weights, a package or a GPU, or that fails
otherwise.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from parley.errors import ModelLoadingError, NotInProfileError, ParleyError, WeightsNotFoundError
from parley.runtime.batching import Tensors
from parley.runtime.gpu_plan import NotPlannedError
from parley.runtime.parameters import LOADED_MODELS_VARIABLE, Parameters
from parley.runtime.repository import config_path
from parley.triton.observability import log_to_triton
from parley.triton.responses import Responder, make_error, serve_tensors
from parley.triton.server_flags import ServerFlags, read_server_flags

_log = logging.getLogger(__name__)


class ServedModel(Protocol):
    """What serves the requests of a model folder."""

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Answer Triton's requests; a decoupled model takes them over, returns None and answers later."""
        ...

    def close(self) -> None:
        """End what is running."""
        ...


class TensorModel:
    """A network with one response: requests whose tensors go to a function as they are."""

    def __init__(
        self, pb_utils: Any, serve: Callable[[Sequence[Tensors]], Sequence[Tensors | ParleyError]]
    ) -> None:
        self._pb = pb_utils
        self._serve = serve

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer all requests with one call of the function."""
        return serve_tensors(self._pb, requests, self._serve)

    def close(self) -> None:
        """Do nothing: the networks end with the process."""


def make(pb_utils: Any, target: str) -> type[Any]:
    """The class ``TritonPythonModel`` of a ``model.py``.

    Args:
        pb_utils: the module ``triton_python_backend_utils``, which exists only inside Triton.
        target: ``module:name`` of what is called with ``pb_utils`` and the model's
            :class:`parley.runtime.parameters.Parameters`, and returns a :class:`ServedModel`. The module is
            imported when Triton initializes the model, because it may need a package that is not installed.
    """

    class TritonPythonModel:
        """The log of this process becomes Triton's.

        Under the launcher an error remains one: the launcher leaves optional models out, and reports the
        others.
        """

        _model: ServedModel

        def initialize(self, args: dict[str, str]) -> None:
            log_to_triton(pb_utils, args["model_name"])
            if LOADED_MODELS_VARIABLE in os.environ:
                self._model = _load(pb_utils, target, args)
                return
            try:
                _check_profile(args, read_server_flags())
                self._model = _load(pb_utils, target, args)
            except (NotInProfileError, WeightsNotFoundError, NotPlannedError) as error:
                _log.warning("every request is refused: %s", error)
                self._model = _Refusal(pb_utils, args, error)
            except Exception as error:  # noqa: BLE001 - logged; the other models serve
                _log.exception("%s cannot serve, every request is refused", args["model_name"])
                self._model = _Refusal(pb_utils, args, error)

        def execute(self, requests: list[Any]) -> list[Any] | None:
            return self._model.execute(requests)

        def finalize(self) -> None:
            self._model.close()

    return TritonPythonModel


def _load(pb_utils: Any, target: str, args: Mapping[str, str]) -> ServedModel:
    module, _, name = target.partition(":")
    model: ServedModel = getattr(importlib.import_module(module), name)(pb_utils, Parameters.from_args(args))
    return model


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

    def close(self) -> None:
        """Do nothing: no model was loaded."""


def _for_clients(model: str, error: Exception) -> ParleyError:
    """The error without the names of folders."""
    if isinstance(error, (NotInProfileError, NotPlannedError)):
        return error
    if isinstance(error, WeightsNotFoundError):
        return WeightsNotFoundError(f"{model} has no weights on this server, whose log has the remedy")
    return ModelLoadingError(f"{model} cannot serve on this server, whose log has the reason")
