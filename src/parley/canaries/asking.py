"""Asking one model after the other, or all at once."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc
from tritonclient.grpc import service_pb2

from parley.canaries.connection import CanaryAddress, CanaryConnection, ServerAddress
from parley.canaries.models import CANARIES, CanaryCall, CanaryError
from parley.errors import NotInProfileError, WeightsNotFoundError
from parley.triton.model_control import CONTROL_MODEL

AGENT = "voice_agent"
NOT_SERVED = (f"{NotInProfileError.code}: ", f"{WeightsNotFoundError.code}: ")
"""How the refusals of models begin that the launcher would have left out: a plain server loads them."""
_AT_ONCE = 4
_READY = "READY"
_UNLOADED = "unloaded"


@dataclass(frozen=True)
class CanaryResult:
    """What one model answered."""

    model: str
    ok: bool
    duration_ms: float
    detail: str
    """What was seen, or why the model failed; does not begin with its name."""


def call_canaries(
    address: ServerAddress,
    models: Collection[str],
    deadline_s: float,
    canaries: Mapping[str, CanaryCall] = CANARIES,
) -> list[str]:
    """Call every loaded model that has a canary, one after the other, in the order of ``canaries``.

    Returns:
        What each call saw; empty if no loaded model has a canary.

    Raises:
        CanaryLateError: a model did not answer in time.
        CanaryError: a model answered wrongly or with an error.
    """
    seen: list[str] = []
    for model, call in canaries.items():
        if model not in models:
            continue
        try:
            seen.append(call(address, deadline_s))
        except CanaryError as error:
            raise type(error)(f"{model}: {error}") from error
    return seen


def ask_canaries(
    address: ServerAddress,
    models: Mapping[str, str],
    deadline_s: float,
    canaries: Mapping[str, CanaryCall] = CANARIES,
) -> list[CanaryResult]:
    """Ask every model, a few at once; a failure is a result. Takes at most twice the deadline.

    Beside an agent, models that are not served here (:data:`NOT_SERVED`) are no part of the result: the agent
    goes without them, and its own canary fails where it cannot.

    Args:
        address: of gRPC, with or without TLS.
        models: by name why the server itself calls a model unavailable; empty: it does not.
        deadline_s: for each model (seconds).
        canaries: by model; a model without one is asked whether it is ready, as Triton sees it.

    Returns:
        In the order of ``models``, without those that are not served.
    """
    end = time.monotonic() + 2 * deadline_s

    def ask(model: str) -> CanaryResult:
        began = time.monotonic()
        if models[model]:
            return CanaryResult(model, ok=False, duration_ms=0.0, detail=models[model])
        if began >= end:
            return CanaryResult(
                model, ok=False, duration_ms=0.0, detail="not asked: others took all the time"
            )
        try:
            call = canaries.get(model) or _is_ready(model)
            detail = call(address, min(deadline_s, end - began))
        except CanaryError as error:
            detail, is_ok = str(error), False
        else:
            is_ok = True
        detail = detail.removeprefix(f"{model} ").removeprefix(f"{model}: ")
        return CanaryResult(model, ok=is_ok, duration_ms=_since_ms(began), detail=detail)

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="canary") as threads:
        results = list(threads.map(ask, models))
    if AGENT not in models:
        return results
    return [one for one in results if one.model == AGENT or one.ok or not one.detail.startswith(NOT_SERVED)]


def ask_models(address: ServerAddress, deadline_s: float) -> list[CanaryResult]:
    """Ask every model that the server is to serve; see :func:`ask_canaries`.

    Raises:
        ParleyError: the server does not answer.
    """
    return ask_canaries(address, profile_models(address, deadline_s), deadline_s)


def profile_models(address: ServerAddress, deadline_s: float) -> dict[str, str]:
    """All models that the server is to serve, and why those are unavailable that failed to load.

    The repository's index names them. Where it is locked, as it should be, the statistics name the models
    that are loaded; ``scripts/serve`` does not start unless every model of its profile is.

    Raises:
        ParleyError: the server does not answer.
    """
    found = _served_models(address, deadline_s)
    found.pop(CONTROL_MODEL, None)  # the launcher's own
    return found


def _served_models(address: ServerAddress, deadline_s: float) -> dict[str, str]:
    with CanaryConnection(address, deadline_s) as server:
        try:
            index = server.stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(), timeout=server.left_s)
        except grpc.RpcError:
            found = server.statistics()
            return dict.fromkeys(sorted({model.name for model in found.model_stats}), "")
        problems: dict[str, str] = {}
        for model in sorted(index.models, key=lambda model: str(model.name)):
            if model.state == _READY:  # one version of several is enough
                problems[model.name] = ""
            elif model.state and model.reason != _UNLOADED:
                # The index also names models that were never to be loaded: those have no state.
                problems.setdefault(model.name, f"{model.state.lower()}: {model.reason}")
        return problems


def _is_ready(model: str) -> CanaryCall:
    def call(address: CanaryAddress, deadline_s: float) -> str:
        with CanaryConnection(address, deadline_s) as server:
            try:
                answer = server.stub.ModelReady(
                    service_pb2.ModelReadyRequest(name=model), timeout=server.left_s
                )
            except grpc.RpcError as error:
                raise CanaryError(str(server.error_of(error))) from error
        if not answer.ready:
            raise CanaryError("the server calls it not ready")
        return f"{model} has no canary; the server calls it ready"

    return call


def _since_ms(began: float) -> float:
    return round(1000 * (time.monotonic() - began), 1)
