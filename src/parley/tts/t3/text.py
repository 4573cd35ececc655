"""Text as T3 reads it."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any, Protocol

from parley.errors import InvalidMessageError, ModelLoadingError, UnsupportedLanguageError
from parley.tts.t3.checkpoint import T3Shape, Variant
from parley.tts.t3.vocabulary import END_OF_TEXT, START_OF_TEXT

_SPACE = "[SPACE]"
_TOKENIZERS: dict[Variant, str] = {
    "original": "tokenizer.json",
    "multilingual": "grapheme_mtl_merged_expanded_v1.json",
}
# The published code rewrites these with dictionaries and models of their own before it reads
# them; without, it speaks them badly.
_NEED_REWRITING = frozenset({"he", "ja", "ru", "zh"})
MULTILINGUAL = frozenset("ar da de el en es fi fr hi it ko ms nl no pl pt sv sw tr".split())
_PUNCTUATION = (
    ("...", ", "),
    ("…", ", "),
    (":", ","),
    (" - ", ", "),
    (";", ", "),
    ("—", "-"),
    ("–", "-"),  # noqa: RUF001 - the dash itself
    (" ,", ","),
    ("“", '"'),
    ("”", '"'),
    ("‘", "'"),  # noqa: RUF001 - the quotation mark itself
    ("’", "'"),  # noqa: RUF001 - the quotation mark itself
)
_ENDS = (*".!?-,", *"、，。？！")  # noqa: RUF001 - those of Chinese and Japanese
# Turbo was published without these.
_NOT_TURBO = frozenset({"...", " - ", ";"})


class TokenTextReader(Protocol):
    """Turns text into T3's text tokens."""

    languages: frozenset[str]

    def read(self, text: str, language: str) -> list[int]:
        """Tokens with their marks.

        Raises:
            InvalidMessageError: there is nothing to say.
            UnsupportedLanguageError: the checkpoint does not speak the language.
        """
        ...


def load_reader(folder: Path, shape: T3Shape) -> TokenTextReader:
    """The reader of a checkpoint's folder.

    Raises:
        ModelLoadingError: its tokenizer is missing or cannot be used.
    """
    try:
        return _TurboReader(folder) if shape.variant == "turbo" else _LetterReader(folder, shape.variant)
    except Exception as error:  # the tokenizers' libraries raise errors of many kinds, and plain ones
        raise ModelLoadingError(f"the tokenizer in {folder} cannot be used: {error}") from error


def tidy(text: str, *, turbo: bool) -> str:
    """Punctuation and spaces as T3 saw them in training.

    Raises:
        InvalidMessageError: nothing is left to say.
    """
    text = " ".join(text.split())
    if not text:
        raise InvalidMessageError("there is no text to say")
    text = text[0].upper() + text[1:] if text[0].islower() else text
    for found, wanted in _PUNCTUATION:
        if not (turbo and found in _NOT_TURBO):
            text = text.replace(found, wanted)
    text = text.rstrip(" ")
    return text if text.endswith(_ENDS) else text + "."


class _LetterReader:
    """Original and Multilingual: pieces of words, between marks for start and end."""

    def __init__(self, folder: Path, variant: Variant) -> None:
        from tokenizers import Tokenizer  # noqa: PLC0415 - only where a checkpoint is loaded

        self._tokenizer: Any = Tokenizer.from_file(str(folder / _TOKENIZERS[variant]))
        self._multilingual = variant == "multilingual"
        self.languages = MULTILINGUAL if self._multilingual else frozenset({"en"})

    def read(self, text: str, language: str) -> list[int]:
        _check(language, self.languages)
        text = tidy(text, turbo=False)
        if self._multilingual:
            # This also takes Korean syllables apart into the letters that the model knows.
            text = f"[{language}]{unicodedata.normalize('NFKD', text.lower())}"
        ids: list[int] = self._tokenizer.encode(text.replace(" ", _SPACE)).ids
        return [START_OF_TEXT, *ids, END_OF_TEXT]


class _TurboReader:
    """Turbo: GPT-2's words and tags such as ``[laugh]``, without marks."""

    languages = frozenset({"en"})

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer  # noqa: PLC0415 - only where a checkpoint is loaded

        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)

    def read(self, text: str, language: str) -> list[int]:
        _check(language, self.languages)
        return list(self._tokenizer(tidy(text, turbo=True)).input_ids)


def _check(language: str, languages: frozenset[str]) -> None:
    if language in languages:
        return
    if language in _NEED_REWRITING:
        raise UnsupportedLanguageError(
            f"text in {language!r} must be rewritten before it is read: send its tokens instead"
        )
    raise UnsupportedLanguageError(f"language {language!r} is not one of {', '.join(sorted(languages))}")
