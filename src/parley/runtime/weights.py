"""Where a model finds its weights, and keeps what it makes of them."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from parley.errors import WeightsNotFoundError
from parley.names import suggest_name
from parley.runtime.parameters import Parameters

MODELS_DIR_VARIABLE = "PARLEY_MODELS_DIR"
INCOMPLETE = "is without "
"""Says of a folder that is there what it lacks."""
_OWN = "weights"

# How to get the weights that the project uses, by their name without the precision.
_REMEDIES: Mapping[str, str] = {
    **{
        name: f"bring it with `make fetch MODEL=resemble/{name}` and `make export MODEL={name}` "
        "(docs/speech.md)"
        for name in ("chatterbox", "chatterbox-multilingual", "chatterbox-turbo")
    },
    **{
        name: f"make it with `make fetch MODEL=nemo/{name}` and `make export MODEL={name}` "
        "(docs/recognition.md)"
        for name in ("parakeet-tdt-0.6b-v2", "parakeet-tdt-0.6b-v3", "nemotron-speech-streaming-en-0.6b")
    },
    **{
        name: f"run `python build/training/{program}`, or restore it with `git checkout -- models/{name}`"
        for name, program in (
            ("tiny-qwen3", "train_tiny_llm.py"),
            ("tiny-nemotron-streaming", "train_tiny_streaming.py"),
            ("tiny-parakeet-tdt", "train_tiny_asr.py"),
            ("tiny-smart-turn", "train_tiny_turn.py"),
        )
    },
    "tiny-embeddings": "restore it with `git checkout -- models/tiny-embeddings`",
}
_DOWNLOADS = (
    *("parakeet-tdt-0.6b-v2", "Qwen3-4B-AWQ"),
    *("whisper-base", "parakeet-ctc-110m", "zipformer-en", "paraformer-zh"),
    *("moonshine-tiny-en", "qwen2.5-coder-0.5b-w8a8", "qwen2.5-coder-1.5b-w8a8"),
    *("piper-joe", "hibari-heart", "kokoro-82m", "misaki-en", "g2p-en", "all-minilm-l6-v2"),
)
"""Which operators may name, and misspell."""
_PRECISION = re.compile(r"-(int8|fp16|bf16)$")


def weights_variable(model: str) -> str:
    """The environment variable that says where ``model`` finds its weights."""
    return f"PARLEY_WEIGHTS_{model}".upper().replace("-", "_")


def models_dir(parameters: Parameters) -> Path:
    """The folder that holds all weights: ``PARLEY_MODELS_DIR``, else ``models`` next to the repository."""
    named = parameters.environment.get(MODELS_DIR_VARIABLE)
    # The absolute path first: a repository given as "model_repository" has "." as its parent.
    return Path(named) if named else Path(os.path.abspath(parameters.repository)).parent / "models"  # noqa: PTH100 - keeps links, as the operator wrote them


def resolve_weights(
    parameters: Parameters,
    default: str | Callable[[], Path],
    required: Sequence[str] = (),
    *,
    setting: str = _OWN,
    remedy: str = "",
) -> Path:
    """The folder with a model's weights.

    The first of these that is set counts: the environment variable ``PARLEY_WEIGHTS_<MODEL>``
    (an operator's choice for this one server), the model's parameter ``weights`` (a profile's
    choice), ``default``. A relative name is a folder in :func:`models_dir`. A ``default`` that may be
    absent, as in a package, is a function, which is called only where it counts.

    ``setting`` may be another parameter that names weights; its variable is ``PARLEY_<MODEL>_<SETTING>``.
    ``remedy`` is what can be done where the folder is there and a file is missing, besides the usual.

    Raises:
        WeightsNotFoundError: the folder or one of its files is missing; the text has the remedy.
    """
    variable = weights_variable(parameters.model) if setting == _OWN else parameters.variable(setting)
    given = parameters.environment.get(variable, "")
    name = given or parameters.text(setting, "") or str(default() if callable(default) else default)
    folder = models_dir(parameters) / name
    missing = [file for file in required if not (folder / file).is_file()]
    if folder.is_dir() and not missing:
        return folder
    remedies = _remedies(name, is_configured=not given)
    if folder.is_dir():
        found = f"{INCOMPLETE}{', '.join(missing)}"
        remedies += [remedy] if remedy else []
    else:
        found = f"does not exist{_near(name, models_dir(parameters))}"
    remedies.append(
        f"correct {variable}, which names it" if given else f"set {variable} to a folder that has it"
    )
    raise WeightsNotFoundError(
        f"weights of model {parameters.model}: {folder} {found}; {', or '.join(remedies)}"
    )


def cache_dir() -> Path:
    """A folder that survives restarts, if there is any."""
    home = os.environ.get("XDG_CACHE_HOME") or (Path.home() / ".cache" if "HOME" in os.environ else "")
    return Path(home or tempfile.gettempdir()) / "parley"


def _remedies(name: str, *, is_configured: bool) -> list[str]:
    """How weights that are not there can be had; ``is_configured``: the repository names them."""
    made = _REMEDIES.get(_PRECISION.sub("", name))
    remedies = [made] if made else []
    if name in _DOWNLOADS or (is_configured and not made):
        remedies.insert(0, f"download it with `make fetch MODEL={name}`")
    return remedies


def _near(name: str, folder: Path) -> str:
    """The folder, or the weights of the manifest, that a misspelt name may mean."""
    if name in _DOWNLOADS:
        return ""
    there = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
    return suggest_name(name, sorted({*there, *_DOWNLOADS}))
