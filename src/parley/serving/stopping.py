"""Noticing that the server wants to stop.

Triton keeps a model loaded until its sequences have ended, and says nothing to the model: a
conversation would go on until the exit timeout kills it. But a call to another model is refused
from the moment at which the server stops. The call that is tried here is refused in any case,
because it asks a decoupled model for a single response; only the reason differs.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

# "Server not ready" while the server exits, the others while this model is being unloaded.
_STOPPING = re.compile(r"not ready|no available version|unknown model|not found", re.IGNORECASE)
_ANSWER_S = 5.0
_log = logging.getLogger(__name__)


async def wait_for_stop(
    pb_utils: Any, model: str, has_served: Callable[[], bool], interval_s: float = 0.5
) -> None:
    """Return when the server or ``model``, once it serves, is being stopped.

    Args:
        pb_utils: Triton's module.
        model: name of the calling model, which must be decoupled.
        has_served: whether the model has had a request; then the server is certainly not loading
            any more.
        interval_s: seconds between two looks.
    """
    served = False
    while True:
        await asyncio.sleep(interval_s)
        try:
            async with asyncio.timeout(_ANSWER_S):
                text = await _refusal(pb_utils, model)
        except TimeoutError:
            _log.warning("the server did not answer within %g s", _ANSWER_S)
            continue
        if not _STOPPING.search(text):
            served = True
        elif served or has_served():  # the same words are said while the server is still loading
            _log.info("the server is stopping: %s", text)
            return


def tell_failure(task: asyncio.Task[None]) -> None:
    """Log why a task that waits for the stop failed: nobody awaits it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("%s failed", task.get_name(), exc_info=error)


async def _refusal(pb_utils: Any, model: str) -> str:
    """Why a call that cannot succeed is refused."""
    request = pb_utils.InferenceRequest(model_name=model, inputs=[], requested_output_names=["EVENT"])
    try:
        response = await request.async_exec()
    except pb_utils.TritonModelException as error:
        return str(error)
    return str(response.error().message()) if response.has_error() else ""
