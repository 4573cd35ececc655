"""ONNX Runtime sessions, made the same way everywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import onnxruntime

from parley.errors import ModelLoadingError
from parley.runtime.parameters import Parameters
from parley.runtime.process_end import DeviceErrors

Device = Literal["cpu", "gpu"]
_CPU = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"
_VARINT, _EIGHT_BYTES, _DELIMITED, _FOUR_BYTES = 0, 1, 2, 5
# Numbers of fields in onnx.proto.
_GRAPH = 7
_NODE, _GRAPH_NAME, _INITIALIZER, _INPUT, _OUTPUT = 1, 2, 5, 11, 12
_NODE_INPUT, _NODE_OUTPUT = 1, 2
_TENSOR_NAME = 8
_ELEMENTS = {"f32": 1, "i64": 7}


def open_session(
    path: Path,
    *,
    device: Device = "cpu",
    device_id: int = 0,
    device_memory: int = 0,
    threads: int = 1,
    more_outputs: Sequence[str] = (),
    part: bytes = b"",
) -> Any:
    """Load an ONNX file.

    Args:
        path: the file.
        device: where to run. A GPU that is asked for and not there is an error, not a slow CPU.
        device_id: index of the GPU.
        device_memory: most bytes of the GPU that the session's arena may take, weights included; 0: no limit.
        threads: CPU threads of one run; concurrent runs add theirs.
        more_outputs: names of values inside of the graph that become outputs too, after its own.
        part: what is loaded in the file's place, cut out of it by :mod:`parley.runtime.onnx`.

    Returns:
        An ``onnxruntime.InferenceSession``, on a GPU a :class:`WatchedSession`.

    Raises:
        ModelLoadingError: the file cannot be loaded, its graph has no such values, or CUDA is missing.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Warnings about unused initializers come with every exported model; errors are raised anyway.
    options.log_severity_level = 3
    # Threads that spin while they wait would take the CPU from the other models.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers: list[Any] = [_CPU]
    if device == "gpu":
        if _CUDA not in onnxruntime.get_available_providers():
            raise ModelLoadingError(f"{path.name}: this ONNX Runtime has no CUDA; install onnxruntime-gpu")
        # The provider's library needs CUDA's and cuDNN's, which lie in packages of their own.
        onnxruntime.preload_dlls()
        providers.insert(0, (_CUDA, _cuda_options(device_id, device_memory)))
    try:
        graph: str | bytes = part or str(path)
        if more_outputs:
            graph = (part or path.read_bytes()) + more_outputs_of(more_outputs)
        session = onnxruntime.InferenceSession(graph, options, providers=providers)
    except Exception as error:  # ONNX Runtime's own exceptions have no common base class
        raise ModelLoadingError(f"{path} cannot be loaded: {error}") from error
    if device == "gpu" and _CUDA not in session.get_providers():
        raise ModelLoadingError(f"{path.name}: CUDA could not be started; see the log of ONNX Runtime")
    return WatchedSession(session, DeviceErrors(path.name)) if device == "gpu" else session


def _cuda_options(device_id: int, memory: int) -> dict[str, str]:
    """Options of the CUDA provider.

    By default it tries every algorithm of cuDNN for each new shape, which takes hundreds of milliseconds,
    and doubles its arena whenever that is full, beside other models on the same GPU.
    """
    options = {
        "device_id": str(device_id),
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
    }
    return options | ({"gpu_mem_limit": str(memory)} if memory else {})


class WatchedSession:
    """A session on a GPU; when the GPU can never be used again, the process ends.

    Args:
        session: an ``onnxruntime.InferenceSession``.
        errors: is informed of every run.
    """

    def __init__(self, session: Any, errors: DeviceErrors) -> None:
        self._session = session
        self._errors = errors

    def run(self, *args: Any) -> Any:
        """See ``InferenceSession.run``."""
        try:
            outputs = self._session.run(*args)
        except Exception as error:
            self._errors.failed(error)
            raise
        self._errors.worked()
        return outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def open_configured(path: Path, parameters: Parameters, *, device_id: int = 0) -> Any:
    """Load an ONNX file as the model's parameters say.

    Parameters of the model: ``device`` (``cpu`` or ``gpu``), ``device_memory_mb`` (most of the GPU's memory,
    MiB; 0: no limit), ``threads``.
    """
    device = parameters.choice("device", "cpu", ("cpu", "gpu"))
    return open_session(
        path,
        device="gpu" if device == "gpu" else "cpu",
        device_id=device_id,
        device_memory=parameters.integer("device_memory_mb", 0) << 20,
        threads=parameters.integer("threads", 1, minimum=1),
    )


@dataclass(frozen=True)
class PartInput:
    """An input of a part; in the whole model it may be computed."""

    name: str
    rank: int
    elements: Literal["f32", "i64"] = "f32"


@dataclass(frozen=True)
class _Node:
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    raw: bytes


class OnnxModel:
    """A model's file, from which parts can be cut.

    Args:
        file: all of it.

    Raises:
        ModelLoadingError: it is not an ONNX model.
    """

    def __init__(self, file: bytes) -> None:
        try:
            fields = list(_fields(file, 0, len(file)))
            (graph,) = (field for field in fields if field.number == _GRAPH)
            # The version, the operator sets: what every part needs too.
            self._header = b"".join(file[field.at : field.end] for field in fields if field is not graph)
            self._nodes: list[_Node] = []
            self._initializers: dict[str, bytes] = {}
            for field in _fields(file, graph.begin, graph.end):
                raw = file[field.at : field.end]
                if field.number == _NODE:
                    names = _texts(file, field, (_NODE_INPUT, _NODE_OUTPUT))
                    self._nodes.append(_Node(tuple(names[_NODE_INPUT]), tuple(names[_NODE_OUTPUT]), raw))
                elif field.number == _INITIALIZER:
                    self._initializers[_texts(file, field, (_TENSOR_NAME,))[_TENSOR_NAME][0]] = raw
        except (IndexError, ValueError) as error:
            raise ModelLoadingError(f"this is not an ONNX model: {error}") from error

    def part(self, inputs: Sequence[PartInput], outputs: Sequence[str]) -> bytes:
        """The file of a model that computes ``outputs`` (of f32) from ``inputs``.

        Raises:
            ModelLoadingError: it cannot be computed from them.
        """
        given = {tensor.name for tensor in inputs}
        wanted = set(outputs)
        nodes: list[bytes] = []
        made: set[str] = set()
        for node in reversed(self._nodes):
            if any(name in wanted and name not in given for name in node.outputs):
                nodes.append(node.raw)
                made.update(node.outputs)
                wanted.update(name for name in node.inputs if name)
        if missing := sorted(wanted - given - made - self._initializers.keys()):
            raise ModelLoadingError(f"the model has no {', '.join(missing)}")
        weights = [raw for name, raw in self._initializers.items() if name in wanted - given]
        graph = [
            *reversed(nodes),
            _delimited(_GRAPH_NAME, b"part"),
            *weights,
            *(_delimited(_INPUT, _tensor(tensor)) for tensor in inputs),
            *map(_output, outputs),
        ]
        return self._header + _delimited(_GRAPH, b"".join(graph))


def more_outputs_of(names: Sequence[str]) -> bytes:
    """What, written behind a model's file, makes outputs of these values inside of its graph.

    Messages of protocol buffers that follow each other are merged: repeated fields, as outputs are, are
    joined.
    """
    return b"".join(_delimited(_GRAPH, _output(name)) for name in names)


@dataclass(frozen=True)
class _Field:
    number: int
    at: int
    """Where its key begins."""
    begin: int
    end: int
    """Offset of the end of its contents."""


def _fields(data: bytes, at: int, end: int) -> Iterator[_Field]:
    while at < end:
        key, begin = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            _, stop = _varint(data, begin)
        elif kind == _DELIMITED:
            length, begin = _varint(data, begin)
            stop = begin + length
        elif kind in (_FOUR_BYTES, _EIGHT_BYTES):
            stop = begin + (4 if kind == _FOUR_BYTES else 8)
        else:
            raise ValueError(f"a field of kind {kind}")
        if stop > end:
            raise ValueError("a field is longer than its message")
        yield _Field(key >> 3, at, begin, stop)
        at = stop


def _texts(data: bytes, message: _Field, numbers: Sequence[int]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {number: [] for number in numbers}
    for field in _fields(data, message.begin, message.end):
        if field.number in found:
            found[field.number].append(data[field.begin : field.end].decode())
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _encoded(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _delimited(number: int, contents: bytes) -> bytes:
    return _encoded(number << 3 | _DELIMITED) + _encoded(len(contents)) + contents


def _output(name: str) -> bytes:
    """A graph's output: a ``ValueInfoProto`` with a name alone."""
    return _delimited(_OUTPUT, _delimited(1, name.encode()))


def _tensor(tensor: PartInput) -> bytes:
    """A ``ValueInfoProto`` whose dimensions all have names of their own."""
    dimensions = (
        _delimited(1, _delimited(2, f"{tensor.name}.{axis}".encode())) for axis in range(tensor.rank)
    )
    elements = _encoded(1 << 3 | _VARINT) + _encoded(_ELEMENTS[tensor.elements])
    kind = _delimited(1, elements + _delimited(2, b"".join(dimensions)))
    return _delimited(1, tensor.name.encode()) + _delimited(2, kind)
