"""CUDA graphs: operations of a device that are recorded once and started together.

With small batches most of a network's time on a GPU goes into starting its kernels. A graph starts them all
at once, always on the same memory and for the same sizes. The thread that serves captures its graphs when
the model is loaded, and never while it serves.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

_log = logging.getLogger("parley.torch")
SizeT = TypeVar("SizeT", bound=Hashable)
GraphT = TypeVar("GraphT")


class Capture(Protocol):
    """Records what a function does on the device."""

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
        """Run the function; the first of the results repeats it, and the second is where its result is."""
        ...


class CudaCapture:
    """CUDA's graphs, which share one pool of memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
        """See :class:`Capture`."""
        # Before a capture, libraries choose their algorithms, and make plans and workspaces for its stream.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()
            run()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            result = run()
        return _Recorded(graph, run), result


class _Recorded:
    """A graph, and the function that it was recorded from.

    A graph works on the addresses of the function's tensors and does not hold them. Without the function,
    other tensors would get the memory of those that nothing else holds.
    """

    def __init__(self, graph: torch.cuda.CUDAGraph, run: Callable[[], Tensor]) -> None:
        self._graph = graph
        self._run = run

    def __call__(self) -> None:
        self._graph.replay()


class Repetition:
    """A device without graphs: the function itself runs again, operation by operation."""

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
        """See :class:`Capture`."""
        result = run()
        return lambda: result.copy_(run()), result


class SharedMemory:
    """Memory for inputs of graphs of which only one runs at a time: inputs of the same name share it.

    The largest is best placed first; a graph whose input was smaller keeps the memory that it had.
    """

    def __init__(self) -> None:
        self._memory: dict[str, Tensor] = {}

    def place(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor in the shared memory, with the shape and the values of ``tensor``."""
        size = math.prod(tensor.shape)
        if name not in self._memory or len(self._memory[name]) < size:
            self._memory[name] = tensor.new_zeros(size)
        place = self._memory[name][:size].view(tensor.shape)
        place.copy_(tensor)
        return place


class BatchGraphs(Generic[SizeT, GraphT]):
    """Base of what runs a network by graphs: one for each size of a batch."""

    def __init__(self) -> None:
        self._graphs: dict[SizeT, GraphT] = {}
        self.without_graph = 0
        """Batches whose size had none."""

    def __len__(self) -> int:
        return len(self._graphs)

    def _find(self, size: SizeT) -> GraphT | None:
        """The graph for a batch; None: there is none, which is counted, and the first time logged."""
        graph = self._graphs.get(size)
        if graph is None:
            self.without_graph += 1
            if self.without_graph == 1:
                name = type(self).__name__
                _log.warning("%s: no graph for a batch of %s; it runs operation by operation", name, size)
        return graph
