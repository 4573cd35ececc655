"""Where the tensors of a file of PyTorch are; nothing in it is run, and PyTorch is not needed."""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parley.errors import ModelLoadingError

_ITEM = 4
"""Bytes of a number."""
_LOCAL_HEADER = struct.Struct("<26xHH")
"""What a zip file has before a member; read of it: the lengths of the name and of the extra field."""


@dataclass(frozen=True)
class StoredTensor:
    """A contiguous f32 tensor in a file."""

    shape: tuple[int, ...]
    offset: int
    """From the beginning of the file, in bytes."""
    length: int
    """In bytes."""


def read_tensors(file: Path) -> Mapping[str, StoredTensor]:
    """The f32 tensors of a dictionary that ``torch.save`` wrote, by name; others are left out.

    Raises:
        ModelLoadingError: it is no such file.
    """
    try:
        with zipfile.ZipFile(file) as archive, file.open("rb") as data:
            (listing,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
            with archive.open(listing) as pickled:
                found = _Reader(pickled).load()
            folder = f"{listing.removesuffix('data.pkl')}data/"
            tensors = {}
            for name, tensor in found.items():
                if tensor.dtype == "FloatStorage":
                    info = archive.getinfo(folder + tensor.storage)
                    data.seek(info.header_offset)
                    begin = info.header_offset + 30 + sum(_LOCAL_HEADER.unpack(data.read(30)))
                    length = _ITEM
                    for size in tensor.shape:
                        length *= size
                    tensors[name] = StoredTensor(tensor.shape, begin + _ITEM * tensor.first, length)
    except Exception as error:  # pickle raises errors of any kind
        raise ModelLoadingError(f"{file} is not a file of tensors: {error}") from error
    return tensors


@dataclass(frozen=True)
class _Tensor:
    dtype: str
    storage: str
    first: int
    shape: tuple[int, ...]


def _rebuild(storage: tuple[str, str], first: int, shape: Sequence[int], *_: Any) -> _Tensor:
    return _Tensor(*storage, first, tuple(shape))


class _Reader(pickle.Unpickler):
    """Knows nothing but what dictionaries of tensors consist of."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild
        if module == "torch" and name.endswith("Storage"):
            return name
        raise pickle.UnpicklingError(f"it has a {module}.{name}")

    def persistent_load(self, pid: Any) -> tuple[str, str]:
        _, dtype, key, _, _ = pid
        return dtype, key
