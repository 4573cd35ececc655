"""ONNX Runtime sessions, made the same way everywhere."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import onnxruntime
from numpy.typing import NDArray

from parley.errors import InferenceError, ModelLoadingError
from parley.runtime.onnx_file import more_outputs_of
from parley.runtime.parameters import Natural, Parameters, Positive
from parley.runtime.process_end import DeviceErrors
from parley.runtime.versions import check_gpus, check_onnx_runtime

Device = Literal["cpu", "gpu"]
_CPU = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"
_TENSORRT = "TensorrtExecutionProvider"
_Shape: TypeAlias = list[Positive]
# Where a graph that is not read from a file has its weights.
_WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


def open_session(
    path: Path,
    *,
    device: Device = "cpu",
    device_id: int = 0,
    device_memory: int = 0,
    threads: int = 1,
    more_outputs: Sequence[str] = (),
    part: bytes = b"",
    tensorrt: Mapping[str, str] | None = None,
) -> Any:
    """Load an ONNX file.

    Args:
        path: the file.
        device: where to run. A GPU that is asked for and not there is an error, not a slow CPU.
        device_id: index of the GPU.
        device_memory: most bytes of the GPU that the session's arena may take, weights included; 0: no limit.
        threads: CPU threads of one run; concurrent runs add theirs.
        more_outputs: names of values inside of the graph that become outputs too, after its own.
        part: what is loaded in the file's place, made of it by :mod:`parley.runtime.onnx_file`.
        tensorrt: options of TensorRT's provider, which then runs what it can, on the GPU; None: not used.

    Returns:
        An ``onnxruntime.InferenceSession``, on a GPU a :class:`WatchedSession`.

    Raises:
        ModelLoadingError: the file cannot be loaded, its graph has no such values, or CUDA is missing.
        UnsupportedVersionError: ONNX Runtime, the driver or the GPU is of a version that does not work.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Warnings about unused initializers come with every exported model; errors are raised anyway.
    options.log_severity_level = 3
    # Threads that spin while they wait would take the CPU from the other models.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers = _providers(path, device, _cuda_options(device_id, device_memory), tensorrt)
    try:
        graph: str | bytes = part or str(path)
        if not isinstance(graph, str) or more_outputs:
            options.add_session_config_entry(_WEIGHTS_FOLDER, str(path.parent))
        if more_outputs:
            graph = (part or path.read_bytes()) + more_outputs_of(more_outputs)
        session = onnxruntime.InferenceSession(graph, options, providers=providers)
    except Exception as error:  # ONNX Runtime's own exceptions have no common base class
        raise ModelLoadingError(f"{path} cannot be loaded: {error}") from error
    for name, wanted in (("CUDA", _CUDA), ("TensorRT", _TENSORRT)):
        is_wanted = device == "gpu" if wanted == _CUDA else tensorrt is not None
        if is_wanted and wanted not in session.get_providers():
            raise ModelLoadingError(f"{path.name}: {name} could not be started; see the log of ONNX Runtime")
    return WatchedSession(session, DeviceErrors(path.name)) if device == "gpu" else session


def _providers(
    path: Path, device: Device, cuda: dict[str, str], tensorrt: Mapping[str, str] | None
) -> list[Any]:
    """Where the network runs, the first choice first; raises ModelLoadingError if one is missing."""
    if device == "cpu":
        if tensorrt is not None:
            raise ModelLoadingError(f"{path.name}: TensorRT needs device gpu")
        return [_CPU]
    check_onnx_runtime()
    check_gpus(int(cuda["device_id"]))
    available = onnxruntime.get_available_providers()
    if _CUDA not in available:
        raise ModelLoadingError(f"{path.name}: this ONNX Runtime has no CUDA; install onnxruntime-gpu")
    if tensorrt is not None and _TENSORRT not in available:
        raise ModelLoadingError(f"{path.name}: this ONNX Runtime has no TensorRT")
    # The provider's library needs CUDA's and cuDNN's, which lie in packages of their own.
    onnxruntime.preload_dlls()
    first = [] if tensorrt is None else [(_TENSORRT, {"device_id": cuda["device_id"], **tensorrt})]
    return [*first, (_CUDA, cuda), _CPU]


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
    """A session on a GPU; when the GPU can never be used again, the process ends."""

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


class StoppedError(Exception):
    """A run was stopped."""


class Stop:
    """Stops the work of a request, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requested = False
        """Whether :meth:`request` was called."""
        self._running: Any = None

    def request(self) -> None:
        """Stop now: a running network ends after its present operator."""
        with self._lock:
            self.requested = True
            if self._running is not None:
                self._running.terminate = True

    def run(
        self, session: Any, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None = None
    ) -> list[NDArray[Any]]:
        """Run a session of ONNX Runtime.

        Raises:
            StoppedError: :meth:`request` was called, before or meanwhile.
            InferenceError: the network failed.
        """
        options = onnxruntime.RunOptions()
        # Errors are raised; that a run was ended is none.
        options.log_severity_level = 4
        with self._lock:
            if self.requested:
                raise StoppedError
            self._running = options
        try:
            made: list[NDArray[Any]] = session.run(outputs, dict(feeds), options)
        except Exception as error:  # ONNX Runtime's own exceptions have no common base class
            if self.requested:
                raise StoppedError from None
            raise InferenceError(f"the network failed: {error}") from error
        finally:
            with self._lock:
                self._running = None
        return made


class OnnxSettings(msgspec.Struct, frozen=True):
    """Where a network of ONNX Runtime runs."""

    device: Literal["cpu", "gpu"] = "cpu"
    """Where the networks run."""
    device_memory_mb: Natural = 0
    """Most of the GPU's memory that ONNX Runtime takes (MiB); 0: no limit."""
    threads: Positive = 1
    """CPU threads of a network."""


class TensorRtSettings(msgspec.Struct, frozen=True):
    """Whether TensorRT runs a network."""

    tensorrt_shapes: str = ""
    """Lets TensorRT run the network ([why not by default](decisions/tensorrt.md)): JSON with the smallest,
    the usual and the largest shape of each input, `{"length": [[1], [8], [16]]}`."""
    tensorrt_cache: str = ""
    """Folder that keeps TensorRT's engines; empty: they are built at each start, which takes minutes."""

    def options(self) -> dict[str, str] | None:
        """Options of TensorRT's provider; None: it is not used.

        Raises:
            ModelLoadingError: the shapes cannot be read.
        """
        if not self.tensorrt_shapes:
            return None
        try:
            shapes = msgspec.json.decode(self.tensorrt_shapes, type=dict[str, tuple[_Shape, _Shape, _Shape]])
        except msgspec.MsgspecError as error:
            raise ModelLoadingError(f"tensorrt_shapes: {error}") from error
        options = {
            f"trt_profile_{name}_shapes": ",".join(
                f"{tensor}:{'x'.join(map(str, ranges[number]))}" for tensor, ranges in shapes.items()
            )
            for number, name in enumerate(("min", "opt", "max"))
        }
        if self.tensorrt_cache:
            options |= {"trt_engine_cache_enable": "1", "trt_engine_cache_path": self.tensorrt_cache}
        return options


def open_configured(
    path: Path,
    parameters: Parameters,
    *,
    device_id: int = 0,
    part: bytes = b"",
    takes_tensorrt: bool = False,
) -> Any:
    """Load an ONNX file, or ``part`` in its place, as the model's parameters say.

    Parameters of the model: :class:`OnnxSettings`, and with ``takes_tensorrt`` :class:`TensorRtSettings`.
    """
    settings = parameters.read(OnnxSettings)
    return open_session(
        path,
        device=settings.device,
        device_id=device_id,
        device_memory=settings.device_memory_mb << 20,
        threads=settings.threads,
        part=part,
        tensorrt=parameters.read(TensorRtSettings).options() if takes_tensorrt else None,
    )
