"""Which tokens are kept, and the files of the tokenizer.

Two thirds of what Qwen2's vocabulary of 151,643 tokens has are words of other languages and long pieces of
program code. Without them the output head, a quarter of what is read from memory for each token, has half the
size. All single bytes stay, so every text can still be read and written; text of which all tokens are kept
is split into the same tokens as before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers.decoders import ByteLevel

from qwen_gguf.source import Vocabulary

_DECODER = ByteLevel()
"""Of tokens, whose characters stand for bytes."""
END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
"""The marks of a conversation; no others are kept."""
ROWS = 64
"""The number of tokens is a multiple of it: no rows of the head are there only to fill it up."""
_MULTILINGUAL = 100_000
"""From this id on the tokens were added for other languages."""
_LATIN = 60_000
"""Up to this id words with accents are kept: names, and words that English has borrowed."""
_ASCII = re.compile(
    r"""\ ?(?: [A-Z]?[a-z]+ | [A-Z]+ | [A-Z][a-z]+[A-Z][a-z]+ | '[a-z]{1,2} )   # words and pieces of words
    | _[a-z]+ | \ ?[a-z]+_ | \ ?\d                                               # names in schemas, digits
    | \ ?[^\w]{1,4} | \n+ | \ {1,8}                                              # punctuation, white space
    """,
    re.ASCII | re.VERBOSE,
)
_ACCENTED = re.compile(r" ?[A-Za-zÀ-ÿ’‘“”–—…£€°]+")  # noqa: RUF001 - these very characters
# How text is cut before its parts are split into tokens: Qwen2's own rule.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Chosen:
    """The vocabulary as it is written."""

    tokens: list[str]
    merges: list[tuple[str, str]]
    marks: list[str]
    """Their ids follow those of the tokens."""
    rows: list[int]
    """By new id: the old one."""


def choose(vocabulary: Vocabulary, *, english: bool) -> Chosen:
    """Choose what is kept.

    Args:
        vocabulary: all there is.
        english: keep what English needs; otherwise everything that can be written.
    """
    tokens = vocabulary.text_tokens
    marks = [mark for mark in (END_OF_TEXT, START, END) if mark in vocabulary.special]
    kept = _english(tokens, vocabulary.merges, len(marks)) if english else set(range(len(tokens)))
    order = sorted(kept)
    names = {tokens[index] for index in order}
    merges = [merge for merge in vocabulary.merges if {*merge, "".join(merge)} <= names]
    rows = order + [vocabulary.special[mark] for mark in marks]
    return Chosen([tokens[index] for index in order], merges, marks, rows)


def _english(tokens: Sequence[str], merges: Sequence[tuple[str, str]], marks: int) -> set[int]:
    ids = {token: index for index, token in enumerate(tokens)}
    parts: dict[str, tuple[str, str]] = {}
    for merge in merges:
        parts.setdefault("".join(merge), merge)

    def add(token: str) -> None:
        # With the tokens that it is merged from, or it could never be formed.
        waiting = [token]
        while waiting:
            found = waiting.pop()
            if ids[found] not in kept:
                kept.add(ids[found])
                waiting += parts.get(found, ())

    kept: set[int] = set()
    for token, index in ids.items():
        if _is_english(token, index):
            add(token)
    # The most frequent others, instead of rows that stand for nothing.
    for token in tokens:
        if (len(kept) + marks) % ROWS == 0:
            break
        if all(ids[part] in kept for part in parts.get(token, ())):
            kept.add(ids[token])
    return kept


def _is_english(token: str, index: int) -> bool:
    if len(token) == 1:
        return True  # a byte
    if index >= _MULTILINGUAL:
        return False
    text = _DECODER.decode([token])  # with U+FFFD for what is no whole character
    if text.isascii():
        return _ASCII.fullmatch(text) is not None
    return index < _LATIN and _ACCENTED.fullmatch(text) is not None


def write(chosen: Chosen, template: str, context: int, folder: Path) -> None:
    """Write the tokenizer's files and the chat template."""
    files = {
        "tokenizer.json": _tokenizer(chosen),
        "tokenizer_config.json": {
            "tokenizer_class": "TokenizersBackend",
            "backend": "tokenizers",
            "clean_up_tokenization_spaces": False,
            "eos_token": END,
            "pad_token": END_OF_TEXT,
            "extra_special_tokens": [START, END],
            "model_max_length": context,
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _tokenizer(chosen: Chosen) -> dict[str, Any]:
    cut = {"type": "Split", "pattern": {"Regex": _WORDS}, "behavior": "Isolated", "invert": False}
    # The words are cut already.
    as_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    shown = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": len(chosen.tokens) + number, "content": mark, **shown}
            for number, mark in enumerate(chosen.marks)
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [cut, as_bytes]},
        "post_processor": as_bytes,
        "decoder": as_bytes,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(chosen.tokens)},
            "merges": [list(merge) for merge in chosen.merges],
        },
    }
