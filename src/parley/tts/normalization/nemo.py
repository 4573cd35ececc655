"""The grammars of ``nemo_text_processing``."""

from __future__ import annotations

import fcntl
import logging
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from parley.errors import ModelLoadingError
from parley.tts.normalization.english import rewrite_english
from parley.tts.normalization.normalizer import Grammar

LANGUAGES = ("ar", "de", "en", "es", "fr", "hi", "hu", "hy", "it", "ja", "ko", "pt", "sv", "vi", "zh")
_PACKAGE = "nemo_text_processing"
_log = logging.getLogger(__name__)


def load_grammars(languages: Sequence[str], cache: Path) -> dict[str, Grammar]:
    """The grammars of these languages; compiling one that ``cache`` lacks takes half a minute to minutes.

    Raises:
        ModelLoadingError: there is no grammar for a language, or the library cannot be used.
    """
    if unknown := [language for language in languages if language not in LANGUAGES]:
        raise ModelLoadingError(
            f"text cannot be normalised in {', '.join(unknown)}; possible are {', '.join(LANGUAGES)}"
        )
    return {language: _load(language, cache) for language in languages}


def _load(language: str, cache: Path) -> Grammar:
    try:
        folder = _compiled(language, cache)
        normalizer = _open(language, folder)
    except Exception as error:  # the libraries raise errors of many kinds
        raise ModelLoadingError(f"the grammar for {language!r} cannot be used: {error}") from error

    def normalize(text: str) -> str:
        written = rewrite_english(text) if language == "en" else text
        return str(normalizer.normalize(written))

    return normalize


def _open(language: str, folder: Path) -> Any:
    # The package imports its tools for recordings, which are not used here, and these difflib's
    # matcher in C, which has no wheels.
    stand_in = ModuleType("cdifflib")
    stand_in.CSequenceMatcher = SequenceMatcher  # type: ignore[attr-defined]
    sys.modules.setdefault("cdifflib", stand_in)
    from nemo_text_processing.text_normalization.normalize import (  # noqa: PLC0415 - half a second
        Normalizer,
    )

    logging.getLogger("NeMo-text-processing").addFilter(_without_words)
    return Normalizer(input_case="cased", lang=language, cache_dir=str(folder))


def _without_words(record: logging.LogRecord) -> bool:
    """Keep only the fact of a warning: the library logs the texts themselves.

    A level is not enough: each call sets the library's own again.
    """
    record.msg, record.args = "a text was not written out: %s", (record.funcName,)
    return record.levelno >= logging.WARNING


def _compiled(language: str, cache: Path) -> Path:
    """A folder with the compiled grammar, which is renamed into place when complete.

    One process compiles it; those of the other voices wait.
    """
    folder = cache / f"{_PACKAGE}-{version(_PACKAGE)}" / language
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{language}.lock").open("w") as lock:
        with suppress(OSError):  # some network file systems have no locks: each process compiles it then
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _log.info("compiling the grammar for %r into %s", language, folder)
            _compile(language, folder)
    return folder


def _compile(language: str, folder: Path) -> None:
    work = Path(tempfile.mkdtemp(prefix=f".{language}-", dir=folder.parent))
    try:
        _open(language, work)
        work.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process was faster
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
