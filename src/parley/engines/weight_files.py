"""Which files the weights of each model consist of, for programs that decide what is loaded.

The models find their weights by the same lists. A folder alone says little: a download may have been
interrupted, or have been made for an earlier version. The networks are not read, nor torch imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from parley.asr import checkpoint
from parley.asr.streaming import encoder as streaming
from parley.embeddings import files as embeddings
from parley.errors import ModelLoadingError, WeightsNotFoundError
from parley.runtime.extensions import find_extensions
from parley.runtime.parameters import Parameters
from parley.runtime.repository import read_parameters
from parley.runtime.weights import resolve_weights
from parley.speakers.embedding import FILE as SPEAKER_FILE
from parley.tts.english import dictionary, network
from parley.tts.synthesizers import KNOWN

Files: TypeAlias = Callable[[Path, Parameters], Sequence[str]]
"""Names of the files that a model needs in a folder; of what may have several names, all, with "or"."""


def find_weights(parameters: Parameters, default: str, files: Files) -> Path:
    """The folder of a model's weights, by :func:`parley.runtime.weights.resolve_weights`, with its files.

    Raises:
        WeightsNotFoundError: the folder or one of the files is missing; the text has the remedy.
        ModelLoadingError: a file that describes the others cannot be used.
    """
    folder = resolve_weights(parameters, default)
    remedy = _describe_recognizer(folder, parameters) if files is recognizer_files else ""
    return resolve_weights(parameters, default, files(folder, parameters), remedy=remedy)


def check_weights(parameters: Parameters) -> None:
    """Find out whether the weights that a model's settings name are there, with all of their files.

    Raises:
        WeightsNotFoundError: one is missing; the text has the remedy.
        ModelLoadingError: a file that describes the others cannot be used.
    """
    files = recognizer_files if parameters.text("family", "") else _FILES.get(parameters.model)
    find_weights(parameters, "", files or _any)
    for setting, names in _SHARED.items():
        if parameters.text(setting, ""):
            resolve_weights(parameters, "", names, setting=setting)


def find_absent_weights(
    repository: Path, profile: str, models: Iterable[str], environment: Mapping[str, str]
) -> dict[str, str]:
    """The reason by model for those of ``models`` whose settings name weights that are not there."""
    absent: dict[str, str] = {}
    for model in models:
        parameters = read_parameters(repository / model, profile, environment)
        if parameters is None or not parameters.text("weights", ""):
            continue
        if reason := absence_of_weights(parameters):
            absent[model] = reason
    return absent


def absence_of_weights(parameters: Parameters) -> str:
    """Why weights that a model's settings name are absent; empty: they are there, or cannot be judged."""
    try:
        check_weights(parameters)
    except WeightsNotFoundError as error:
        return str(error)
    except ModelLoadingError:
        return ""  # the model itself says what is wrong with its files
    return ""


def recognizer_files(folder: Path, parameters: Parameters) -> Sequence[str]:
    """Of a recogniser that reads stretches of speech."""
    # The families import ONNX Runtime.
    from parley.asr.readers import FILE, file_names  # noqa: PLC0415

    names = file_names(folder, parameters.text("family", "moonshine"))
    is_described = (folder / FILE).is_file()
    if is_described or all((folder / name).is_file() for name in names):
        return names
    # Without it the files of the setting's family are sought, which may not be the folder's.
    return (FILE, *names)


def _describe_recognizer(folder: Path, parameters: Parameters) -> str:
    from parley.asr.readers import FAMILIES, FILE  # noqa: PLC0415

    if (folder / FILE).is_file():
        return ""
    return (
        f"write {FILE} into it if it is not of the family {parameters.text('family', 'moonshine')}, for "
        f'example {{"family": "zipformer"}} (of {", ".join(FAMILIES)}; '
        "docs/recognition.md#a-folder-of-your-own has the names of their files)"
    )


def streaming_files(folder: Path, parameters: Parameters) -> Sequence[str]:
    """Of ``nemotron_streaming``: on torch one file of weights will do, else each look-ahead has one."""
    if parameters.text("engine", "onnx") == "torch":
        weights = (checkpoint.WEIGHTS_FILE, checkpoint.DECODER_FILE)
        return (*checkpoint.DESCRIPTION, *one_of(folder, weights))
    if any(not (folder / name).is_file() for name in streaming.FILES):
        return streaming.FILES
    export = streaming.load(folder)
    chosen = streaming.chosen_look_aheads(export, streaming.read_look_aheads(parameters))
    return (*streaming.FILES, *(export.encoder(look_ahead).name for look_ahead in chosen))


def one_of(folder: Path, names: Sequence[str]) -> Sequence[str]:
    """Nothing if one of these files is there, else a text that names them all."""
    return () if any((folder / name).is_file() for name in names) else (" or ".join(names),)


def _always(*names: str) -> Files:
    return lambda _folder, _parameters: names


_any = _always()
_FILES: Mapping[str, Files] = {
    "nemotron_streaming": streaming_files,
    "embeddings": _always(*embeddings.FILES),
    "speaker_embedding": _always(SPEAKER_FILE),
    **{model: _always(*known.files) for model, known in KNOWN.items()},
    **find_extensions("weight_files"),
}
_SHARED: Mapping[str, Sequence[str]] = {"dictionary": dictionary.FILES, "letters": (network.FILE,)}
"""By settings that name folders of weights which several models use."""
