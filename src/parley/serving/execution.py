"""The common shape of a synchronous ``execute``: one answer or one error for each request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from parley.errors import ParleyError
from parley.inference import Tensor
from parley.serving.batching import Tensors
from parley.serving.tensors import make_error, make_response, read_tensors

T = TypeVar("T")
_log = logging.getLogger(__name__)


def answer(pb_utils: Any, result: T | ParleyError, outputs: Callable[[T], Mapping[str, Tensor]]) -> Any:
    """The response to one request: the outputs of its result, or its error."""
    if isinstance(result, ParleyError):
        _log.warning("%s", result.to_log())
        return make_error(pb_utils, result)
    return make_response(pb_utils, outputs(result))


def serve_tensors(
    pb_utils: Any,
    requests: Sequence[Any],
    serve: Callable[[Sequence[Tensors]], Sequence[Tensors | ParleyError]],
) -> list[Any]:
    """Answer requests whose tensors go to ``serve``, all together, as they are."""
    results = serve([read_tensors(request.inputs()) for request in requests])
    return [answer(pb_utils, result, lambda tensors: tensors) for result in results]
