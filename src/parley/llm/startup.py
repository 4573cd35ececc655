"""vLLM's engine out of a model's settings: the same for every model that runs on vLLM."""

from __future__ import annotations

import json
import locale
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec

from parley.llm.engine import Engine, PrioritizedRequest, Translation
from parley.llm.engine_metrics import EngineMetrics
from parley.llm.inprocess import InProcessEngine, VllmEngine
from parley.llm.vllm_api import RUNNER_VARIABLE
from parley.python import find_python
from parley.runtime.gpu_loading import ENGINE_START_S, loading_on_gpu
from parley.runtime.parameters import Natural, NonNegative, Parameters
from parley.runtime.versions import check_gpus, check_torch, check_vllm
from parley.runtime.weights import cache_dir

_FREE_SHARE = 0.02
RequestT = TypeVar("RequestT", bound=PrioritizedRequest)
_DEFAULTS = {
    # Models are local folders; nothing may wait for a network.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "TOKENIZERS_PARALLELISM": "false",
    # Other models share these cores: let the scheduler place the threads.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Clients' tools become grammars. vLLM would keep 512 MB of them.
    "VLLM_XGRAMMAR_CACHE_MB": "128",
    # oneDNN makes a primitive for every number of tokens in a step. It would keep 1,024 of them, 0.3 MB each.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
}
_VNNI = {"avx512_vnni", "avx_vnni"}


@dataclass(frozen=True)
class StartedEngine(Generic[RequestT]):
    """A running engine."""

    engine: Engine[RequestT]
    max_model_len: int
    """Tokens of a prompt and its continuation together."""
    block: int = 1
    """Tokens that requests share as a whole in the prefix cache, as far as the engine's arguments say it."""


class EngineSettings(msgspec.Struct, frozen=True):
    """Settings of models on vLLM."""

    engine: Literal["inprocess", "async"] = "async"
    """``inprocess`` is one process, on a CPU; ``async`` has a process for the core, on a GPU."""
    engine_args: str = "model.json"
    """File in the version folder with vLLM's engine arguments."""
    threads: Natural = 0
    """Most threads per matrix operation on a CPU; 0 leaves it to the library. A step of an engine
    ``inprocess`` takes fewer while other work needs the processors."""
    kv_cache_gib: NonNegative = 0.0
    """Memory for the caches of requests, in place of what the file says; 0: as it says."""


def start_engine(
    parameters: Parameters,
    weights: Path,
    translation: Callable[[], Translation[RequestT]],
    *,
    fixed: Mapping[str, Any] | None = None,
    died: Callable[[str], None] = lambda _: None,
    metrics: EngineMetrics | None = None,
) -> StartedEngine[RequestT]:
    """Start the engine that the settings describe; call it on the event loop that will use it.

    Parameters of the model: :class:`EngineSettings`.

    vLLM loads ``weights``, with the ``fixed`` arguments in place of the file's. ``translation`` is called
    when vLLM may be imported, and ``died`` with the reason when the engine can never answer again.
    ``metrics`` get the engine's figures, unless its arguments have ``disable_log_stats``.

    Raises:
        ModelLoadingError: a setting, the arguments or the weights are not usable.
        UnsupportedVersionError: vLLM, or what it needs on a GPU, is of another version.
    """
    settings = parameters.read(EngineSettings)
    in_process = settings.engine == "inprocess"
    arguments = parameters.version_dir / settings.engine_args
    prepare_environment(
        engine_in_process=in_process,
        compiles=not in_process or not _is_eager(arguments),
        threads=settings.threads,
        cache_dir=cache_dir() / "vllm",
    )
    check_vllm()
    if not in_process:
        check_torch()
        check_gpus()
    # vLLM reads the environment while it is imported.
    from parley.llm.vllm_types import read_engine_args  # noqa: PLC0415

    own = {**(fixed or {}), **cache_arguments(parameters)}
    engine_args = read_engine_args(arguments, weights, asynchronous=not in_process, fixed=own)
    translate = translation()
    if not in_process:
        from parley.llm.async_llm import AsyncEngine  # noqa: PLC0415

        with loading_on_gpu(alone=engine_args.kv_cache_memory_bytes is None):
            engine = AsyncEngine(engine_args, translate, died=died, metrics=metrics)
        if metrics is not None:
            metrics.watch(lambda: engine.busy)
        return StartedEngine(engine, engine.max_model_len, engine_args.block_size or 1)

    if not has_vnni():
        from parley.llm.vllm_int8 import register_int8  # noqa: PLC0415

        register_int8()
    created: list[VllmEngine[RequestT]] = []

    def create() -> VllmEngine[RequestT]:
        created.append(VllmEngine(engine_args, translate, metrics))
        return created[0]

    stepped = InProcessEngine(create, start_timeout_s=ENGINE_START_S, died=died, metrics=metrics)
    if metrics is not None:
        metrics.watch(lambda: stepped.busy)
    return StartedEngine(stepped, created[0].max_model_len, engine_args.block_size or 1)


def cache_arguments(parameters: Parameters) -> dict[str, Any]:
    """Arguments of vLLM for the setting ``kv_cache_gib``; none without it."""
    size = parameters.read(EngineSettings).kv_cache_gib
    if not size:
        return {}
    # With a size vLLM measures nothing. Of the share it only checks that so much is free.
    return {"kv_cache_memory_bytes": int(size * 2**30), "gpu_memory_utilization": _FREE_SHARE}


def prepare_environment(
    *,
    engine_in_process: bool,
    threads: int,
    cache_dir: Path,
    compiles: bool = True,
    environment: MutableMapping[str, str] = os.environ,
) -> None:
    """Set what vLLM reads while it is imported. Values set by the operator stay.

    Without ``compiles`` torch compiles nothing, not even vLLM's small functions that ``enforce_eager`` does
    not concern: one of them makes g++ compile PyTorch's headers at each start. ``threads`` are those of one
    matrix operation on a CPU; 0 leaves the library's choice. ``cache_dir`` survives restarts.
    """
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    for name, value in _DEFAULTS.items():
        environment.setdefault(name, value)
    environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0" if engine_in_process else "1"
    if engine_in_process:
        environment.setdefault(RUNNER_VARIABLE, "0")  # parley.llm.vllm_prompt_scores is for that one
    environment.setdefault("VLLM_ENGINE_READY_TIMEOUT_S", f"{ENGINE_START_S:.0f}")
    environment.setdefault("VLLM_CACHE_ROOT", str(cache_dir))
    if not compiles:
        environment.setdefault("TORCHDYNAMO_DISABLE", "1")
    if threads:
        environment.setdefault("OMP_NUM_THREADS", str(threads))
    if engine_in_process and not has_vnni():
        environment.setdefault("VLLM_DISABLED_KERNELS", "CPUInt8ScaledMMLinearKernel")
    _name_python(environment)


def has_vnni(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this processor multiplies int8 by itself; True where it is not known."""
    try:
        flags = next((line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")), "")
    except OSError:
        return True
    return not flags or not _VNNI.isdisjoint(flags.split())


def _is_eager(arguments: Path) -> bool:
    try:
        return json.loads(arguments.read_bytes()).get("enforce_eager") is True
    except (OSError, ValueError, AttributeError):
        return False  # read_engine_args says what is wrong


def _name_python(environment: MutableMapping[str, str]) -> None:
    """Make ``sys.executable`` the Python whose packages this process uses."""
    python = find_python(environment)
    if python and python != sys.executable:
        sys.executable = python
        multiprocessing.set_executable(python)
