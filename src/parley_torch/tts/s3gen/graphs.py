"""The flow as CUDA graphs, one for each size of a batch.

With small batches most of the flow's time on a GPU goes into starting its kernels. A graph starts them all at
once, always on the same memory and for the same sizes. All graphs are captured when the model is loaded; a
batch of another size runs operation by operation. So nothing is ever captured while utterances are served.
``torch.compile`` took 82 s for one size on an H100 (docs/measurements.md).

The inputs of all graphs share memory, and so do their results: only one graph runs at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

from torch import Tensor

from parley_torch.runtime.cuda_graphs import BatchGraphs, Capture, SharedMemory
from parley_torch.tts.s3gen.flow import Flow, FlowBatch
from parley_torch.tts.s3gen.state import PastBatch

Size = tuple[int, int, int, int, bool]
_OWN_MEMORY = "step_keys"
"""By far the largest input. All batches that have a graph have it at the same address: it is not copied."""


@dataclass(frozen=True)
class _Graph:
    replay: Callable[[], object]
    batch: FlowBatch
    """Its inputs."""
    mels: Tensor
    """Its result."""
    used: Sequence[Tensor]
    """Further tensors whose addresses it holds."""


class FlowGraphs(BatchGraphs[Size, _Graph]):
    """Runs the flow. Not to be used from two threads at once."""

    def __init__(self, flow: Flow, capture: Capture) -> None:
        super().__init__()
        self._flow = flow
        self._capture = capture
        self._memory = SharedMemory()

    def add(self, batch: FlowBatch, *, keep: bool) -> None:
        """Capture a graph for the size of a batch, unless there is one; the largest is best added first."""
        size = batch_size(batch, keep=keep)
        if size in self._graphs:
            return
        placed = {
            name: tensor if name == _OWN_MEMORY else self._memory.place(name, tensor)
            for name, tensor in _tensors(batch).items()
        }
        own = _replace(batch, placed)
        replay, mels = self._capture(lambda: self._flow(own, keep=keep))
        self._graphs[size] = _Graph(replay, own, mels, self._flow.cached_tensors)

    def run(self, batch: FlowBatch, *, keep: bool) -> tuple[Tensor, PastBatch]:
        """See :meth:`Flow.forward`; also returns the pasts, valid until the next run."""
        graph = self._find(batch_size(batch, keep=keep))
        if graph is None:
            return self._flow(batch, keep=keep), batch.past
        own = _tensors(graph.batch)
        for name, tensor in _tensors(batch).items():
            if own[name].data_ptr() != tensor.data_ptr():
                own[name].copy_(tensor)
        graph.replay()
        return graph.mels.clone(), graph.batch.past


def batch_size(batch: FlowBatch, *, keep: bool) -> Size:
    """Rows, tokens, tokens of the encoder's past, frames of the estimator's, and whether pasts are kept."""
    rows, tokens = batch.ahead.shape[:2]
    past = batch.past
    return rows, tokens, past.token_keys.shape[-2] - past.room, past.positions.shape[1], keep


_PAST = [field.name for field in fields(PastBatch) if field.name != "room"]
_BATCH = [field.name for field in fields(FlowBatch) if field.name not in {"masks", "past"}]


def _tensors(batch: FlowBatch) -> dict[str, Tensor]:
    # The encoder's and the estimator's past both have contexts, under different names.
    named = {name: getattr(batch, name) for name in _BATCH}
    named |= {f"mask {index}": mask for index, mask in enumerate(batch.masks)}
    return named | {
        name if name == _OWN_MEMORY else f"past {name}": getattr(batch.past, name) for name in _PAST
    }


def _replace(batch: FlowBatch, tensors: dict[str, Tensor]) -> FlowBatch:
    past = {name: tensors[name if name == _OWN_MEMORY else f"past {name}"] for name in _PAST}
    masks = tensors["mask 0"], tensors["mask 1"], tensors["mask 2"]
    own = {name: tensors[name] for name in _BATCH}
    return replace(batch, **own, masks=masks, past=PastBatch(**past, room=batch.past.room))
