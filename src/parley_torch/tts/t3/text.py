"""Text to T3's text tokens."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parley.errors import InvalidMessageError, ModelLoadingError, UnsupportedLanguageError
from parley.tts.voice_messages import MULTILINGUAL, Variant
from parley_torch.tts.chatterbox.files import TOKENIZERS
from parley_torch.tts.t3.checkpoint import T3Shape
from parley_torch.tts.t3.request import END_OF_TEXT, START_OF_TEXT

_SPACE = "[SPACE]"
# The published code rewrites text in these languages with dictionaries and models of their own;
# without that, they are spoken badly.
_NEED_REWRITING = frozenset({"he", "ja", "ru", "zh"})
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


class TokenTextReader:
    """The tokenizer of a checkpoint: text to T3's text tokens.

    Original and Multilingual have pieces of words between marks for start and end; Turbo has GPT-2's
    words and tags such as ``[laugh]``, without marks. ``encode`` is the library's part.
    """

    def __init__(self, variant: Variant, encode: Callable[[str], list[int]]) -> None:
        self._variant = variant
        self._encode = encode
        self._languages = MULTILINGUAL if variant == "multilingual" else frozenset({"en"})

    def read(self, text: str, language: str) -> list[int]:
        """Tokens with their marks.

        Raises:
            InvalidMessageError: the text is empty.
            UnsupportedLanguageError: the checkpoint does not speak the language.
        """
        _check(language, self._languages)
        text = tidy(text, turbo=self._variant == "turbo")
        if self._variant == "turbo":
            return self._encode(text)
        if self._variant == "multilingual":
            # This also splits Korean syllables into the letters of the vocabulary.
            text = f"[{language}]{unicodedata.normalize('NFKD', text.lower())}"
        return [START_OF_TEXT, *self._encode(text.replace(" ", _SPACE)), END_OF_TEXT]


def load_reader(folder: Path, shape: T3Shape) -> TokenTextReader:
    """The reader of a checkpoint's folder.

    Raises:
        ModelLoadingError: its tokenizer is missing or cannot be used.
    """
    try:
        if shape.variant == "turbo":
            from transformers import AutoTokenizer  # noqa: PLC0415 - only where a checkpoint is loaded

            words: Any = AutoTokenizer.from_pretrained(folder)
            return TokenTextReader("turbo", lambda text: list(words(text).input_ids))
        from tokenizers import Tokenizer  # noqa: PLC0415 - only where a checkpoint is loaded

        letters: Any = Tokenizer.from_file(str(folder / TOKENIZERS[shape.variant]))
        return TokenTextReader(shape.variant, lambda text: list(letters.encode(text).ids))
    except Exception as error:  # the libraries raise errors of many kinds, and plain ones
        raise ModelLoadingError(f"the tokenizer in {folder} cannot be used: {error}") from error


def tidy(text: str, *, turbo: bool) -> str:
    """Punctuation and spaces as in T3's training texts.

    Raises:
        InvalidMessageError: the text is empty.
    """
    text = " ".join(text.split())
    if not text:
        raise InvalidMessageError("there is no text to say")
    text = text[0].upper() + text[1:] if text[0].islower() else text
    for mark, replacement in _PUNCTUATION:
        if not (turbo and mark in _NOT_TURBO):
            text = text.replace(mark, replacement)
    text = text.rstrip(" ")
    return text if text.endswith(_ENDS) else text + "."


def _check(language: str, languages: frozenset[str]) -> None:
    if language in languages:
        return
    if language in _NEED_REWRITING:
        raise UnsupportedLanguageError(
            f"text in {language!r} must be rewritten first: send its tokens instead"
        )
    raise UnsupportedLanguageError(f"language {language!r} is not one of {', '.join(sorted(languages))}")
