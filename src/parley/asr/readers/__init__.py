"""Families of recognisers that read stretches of speech as a whole.

A folder of weights says in ``recognizer.json`` which ``family`` it belongs to and, where they differ from
the family's own, the names of its files: ``{"family": "whisper", "encoder": "onnx/encoder_quantized.onnx"}``.
Of a family whose files do not say which languages they understand, it may say that too, with commas between
them: ``"languages": "de,fr"``. ``make fetch`` writes it from the manifest. Another model of a known family is
another folder; a new family is a module here, or a line of :mod:`.sherpa`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from parley.asr.reader import Reader, RunLimits
from parley.asr.readers import moonshine, sherpa, whisper
from parley.asr.readers.attention import AttentionModel, AttentionReader
from parley.asr.readers.sherpa import SherpaFamily
from parley.errors import ModelLoadingError, WeightsNotFoundError
from parley.runtime.onnx import OnnxSettings

FILE = "recognizer.json"
OpenNetwork: TypeAlias = Callable[..., Any]
"""Makes a session of an ONNX file; of ``part`` in its place, see :func:`parley.runtime.onnx.open_session`."""


@dataclass(frozen=True)
class AttentionFamily:
    """How the models of a family of attention decoders are loaded; the files list their languages."""

    files: Mapping[str, str]
    """Names of their files, by role."""
    load: Callable[[Mapping[str, Path], OpenNetwork], AttentionModel]
    """Makes a model of its files, by role."""


FAMILIES: Mapping[str, AttentionFamily | SherpaFamily] = {
    "moonshine": AttentionFamily(moonshine.FILES, moonshine.load),
    "whisper": AttentionFamily(whisper.FILES, whisper.load),
    **sherpa.FAMILIES,
}
_LANGUAGES = "languages"


def load_reader(
    folder: Path,
    family: str,
    open_network: OpenNetwork,
    *,
    least_confidence: float | None = None,
    limits: RunLimits = RunLimits(),  # noqa: B008 - frozen
    onnx: OnnxSettings = OnnxSettings(),  # noqa: B008
) -> Reader:
    """Load the model in a folder.

    Args:
        folder: has the weights.
        family: of a folder without ``recognizer.json``.
        open_network: makes a session of an ONNX file.
        least_confidence: of a text, 0-1, below which there is none; None: the family's own.
        limits: which stretches are read in one run, where the model can read several.
        onnx: where a model of sherpa-onnx runs; that of others is up to ``open_network``.

    Raises:
        WeightsNotFoundError: a file is missing.
        ModelLoadingError: the family is not known, or a file cannot be used.
    """
    found = _describe(folder, family)
    files = {role: folder / name for role, name in found.files.items()}
    if missing := [found.files[role] for role, file in files.items() if not file.is_file()]:
        raise WeightsNotFoundError(
            f"{folder} is without {', '.join(missing)}, which the family {found.family} needs"
        )
    try:
        known = FAMILIES[found.family]
        if isinstance(known, SherpaFamily):
            return sherpa.load(
                known,
                files,
                open_network,
                found.languages,
                limits,
                onnx=onnx,
                least_confidence=least_confidence or 0.0,
            )
        return AttentionReader(known.load(files, open_network), least_confidence=least_confidence)
    except ModelLoadingError as error:
        if (folder / FILE).is_file():
            raise
        raise ModelLoadingError(
            f"{error}. {folder} has no {FILE}, so it was taken for one of the family {found.family}: if it "
            "is not, write its family there (docs/recognition.md#a-folder-of-your-own)"
        ) from error


def file_names(folder: Path, family: str) -> tuple[str, ...]:
    """Names of the files that the model in a folder consists of; ``family`` as for :func:`load_reader`.

    Raises:
        ModelLoadingError: the family is not known, or ``recognizer.json`` cannot be used.
    """
    return tuple(_describe(folder, family).files.values())


@dataclass(frozen=True)
class _Description:
    """What is known of a folder."""

    family: str
    files: Mapping[str, str]
    """Names by role."""
    languages: tuple[str, ...]
    """Of a :class:`SherpaFamily`; none: the family's own."""


def _describe(folder: Path, family: str) -> _Description:
    described = _read_description(folder / FILE)
    name = described.pop("family", family)
    if name not in FAMILIES:
        raise ModelLoadingError(f"{folder} is of the family {name!r}; known are {', '.join(FAMILIES)}")
    known = FAMILIES[name]
    languages: tuple[str, ...] = ()
    if isinstance(known, SherpaFamily):
        languages = tuple(described.pop(_LANGUAGES, "").replace(",", " ").split())
    if unknown := sorted(described.keys() - known.files.keys()):
        raise ModelLoadingError(
            f"{folder / FILE} has {', '.join(unknown)}; the family {name} has {', '.join(known.files)}"
        )
    files = {role: described.get(role, default) for role, default in known.files.items()}
    return _Description(name, files, languages)


def _read_description(file: Path) -> dict[str, str]:
    if not file.is_file():
        return {}
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError) as error:
        raise ModelLoadingError(f"{file} cannot be read: {error}") from error
