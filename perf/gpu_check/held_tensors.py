"""How much memory the tensors of a computation take at once, also on PyTorch's device ``meta``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class HeldTensors(TorchDispatchMode):
    """Counts, while it is entered, what operations allocate and what is freed of it.

    What a library takes for itself within an operation is not seen.

    Args:
        known: tensors that do not count, nor what shares their memory.
    """

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.peak = 0
        """Bytes."""
        self._held = 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in known}  # noqa: SLF001 - its only identity

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation, and count its results."""
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        identity, size = storage._cdata, storage.nbytes()  # noqa: SLF001
        if identity not in self._seen:
            self._seen.add(identity)
            self._held += size
            self.peak = max(self.peak, self._held)
            weakref.finalize(storage, self._free, identity, size)

    def _free(self, identity: int, size: int) -> None:
        self._seen.discard(identity)
        self._held -= size
