"""vLLM's engine out of a model's settings: the same for every model that runs on vLLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from parley.llm.engine import Engine, Identified, Translation
from parley.llm.stub_environment import prepare_environment
from parley.runtime.parameters import Parameters
from parley.runtime.weights import cache_dir

START_TIMEOUT_S = 900.0
RequestT = TypeVar("RequestT", bound=Identified)


@dataclass(frozen=True)
class StartedEngine(Generic[RequestT]):
    """A running engine."""

    engine: Engine[RequestT]
    max_model_len: int
    """Tokens of a prompt and its continuation together."""


def start_engine(
    parameters: Parameters,
    weights: Path,
    translation: Callable[[], Translation[RequestT]],
    *,
    fixed: Mapping[str, Any] | None = None,
    died: Callable[[str], None] = lambda _: None,
) -> StartedEngine[RequestT]:
    """Start the engine that the settings describe; call it on the event loop that will use it.

    Parameters of the model:
        ``engine``: ``inprocess`` (one process; CPU) or ``async`` (a process for the core; GPU).
        ``engine_args``: file in the version folder with vLLM's engine arguments.
        ``threads``: threads per matrix operation on a CPU; 0 leaves it to the library.

    Args:
        parameters: the model's settings.
        weights: folder that vLLM loads.
        translation: makes the translation of the requests; vLLM may be imported by then.
        fixed: engine arguments that the model itself needs, whatever the file says.
        died: is given the reason when the engine can never answer again.

    Raises:
        ModelLoadingError: a setting, the arguments or the weights are not usable.
    """
    in_process = parameters.choice("engine", "async", ("inprocess", "async")) == "inprocess"
    arguments = parameters.version_dir / parameters.text("engine_args", "model.json")
    prepare_environment(
        engine_in_process=in_process,
        threads=parameters.integer("threads", 0),
        cache_dir=cache_dir() / "vllm",
    )
    # vLLM reads the environment while it is imported.
    from parley.llm.vllm_types import read_engine_args  # noqa: PLC0415

    engine_args = read_engine_args(arguments, weights, asynchronous=not in_process, fixed=fixed or {})
    translate = translation()
    if not in_process:
        from parley.llm.async_llm import AsyncEngine  # noqa: PLC0415

        engine = AsyncEngine(engine_args, translate, died=died)
        return StartedEngine(engine, engine.max_model_len)
    from parley.llm.inprocess import InProcessEngine  # noqa: PLC0415
    from parley.llm.vllm_engine import VllmEngine  # noqa: PLC0415

    created: list[VllmEngine[RequestT]] = []

    def create() -> VllmEngine[RequestT]:
        created.append(VllmEngine(engine_args, translate))
        return created[0]

    stepped = InProcessEngine(create, start_timeout_s=START_TIMEOUT_S, died=died)
    return StartedEngine(stepped, created[0].max_model_len)
