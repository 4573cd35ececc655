"""A GGUF file as the folder that the model ``qwen3`` loads."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from comparison import ExportError, note
from qwen_gguf import vocabulary, weights
from qwen_gguf.source import Shape, Source
from qwen_gguf.weights import CONFIG, WEIGHTS, Adapter

VERSION = 2
"""Of what is written: a folder of another version is made again."""
NOTE = ".source.json"
"""What the folder was made of, and the checksums of its files."""
_STALE_S = 3600.0


def convert(source: Path, target: Path, *, english: bool, adapter: Path | None) -> None:
    """Make the folder, unless it is there already: made of the same file in the same way, and whole.

    Args:
        source: the GGUF file, or a folder with one.
        target: the folder; it appears when it is complete, and one that was there before stays until then.
        english: keep only the tokens that English needs.
        adapter: folder of a LoRA that is merged into the matrices; None: none is.

    Raises:
        ExportError: the file is not there, or cannot be converted.
    """
    began, target = time.monotonic(), target.resolve()
    remove_leftovers(target)
    source = find(source)
    made_of = {
        "file": source.name,
        "sha256": _digest(source),
        "converter": VERSION,
        "vocabulary": "english" if english else "whole",
        "adapter": adapter_files(adapter) if adapter else {},
    }
    if is_made_of(target, made_of):
        note(f"{target} is there already")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as temporary:
        folder = Path(temporary) / target.name
        folder.mkdir()
        _write(source, folder, english=english, adapter=adapter)
        files = {path.name: _digest(path) for path in sorted(folder.iterdir())}
        _write_json(folder / NOTE, made_of | {"files": files})
        if target.exists():
            target.replace(Path(temporary) / "before")
        folder.replace(target)
    note(f"{target} is complete ({time.monotonic() - began:.0f} s)")


def adapter_files(folder: Path) -> dict[str, str]:
    """SHA-256 of an adapter's files by their names.

    Raises:
        ExportError: they are not there.
    """
    try:
        return {name: _digest(folder / name) for name in (CONFIG, WEIGHTS)}
    except OSError as error:
        raise ExportError(f"{folder} is not an adapter: {error}") from error


def is_made_of(folder: Path, made_of: dict[str, Any]) -> bool:
    """Whether a folder was made of this, and all its files are as they were written."""
    try:
        note = json.loads((folder / NOTE).read_text(encoding="utf-8"))
        files: dict[str, str] = note.pop("files")
        return note == made_of and all(_digest(folder / name) == known for name, known in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _write(path: Path, folder: Path, *, english: bool, adapter: Path | None) -> None:
    note("reading the vocabulary")
    source = Source(path)
    shape, published = source.shape(), source.vocabulary()
    missing = {vocabulary.END_OF_TEXT, vocabulary.START, vocabulary.END} - published.special.keys()
    if missing:
        raise ExportError(f"{path} has no {', '.join(sorted(missing))}: it is no chat model")
    chosen = vocabulary.choose(published, english=english)
    note(f"{len(chosen.rows)} of {len(published.tokens)} tokens are kept")
    vocabulary.write(chosen, source.chat_template(), shape.context, folder)
    marks = {mark: len(chosen.tokens) + number for number, mark in enumerate(chosen.marks)}
    _write_json(folder / "config.json", _config(shape, len(chosen.rows), marks))
    _write_json(
        folder / "generation_config.json",
        {
            "do_sample": False,
            "bos_token_id": marks[vocabulary.END_OF_TEXT],
            "pad_token_id": marks[vocabulary.END_OF_TEXT],
            "eos_token_id": [marks[vocabulary.END], marks[vocabulary.END_OF_TEXT]],
        },
    )
    weights.write(source, chosen.rows, folder, Adapter(adapter) if adapter else None)


def _config(shape: Shape, tokens: int, marks: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.epsilon,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "vocab_size": tokens,
        "bos_token_id": marks[vocabulary.END_OF_TEXT],
        "pad_token_id": marks[vocabulary.END_OF_TEXT],
        "eos_token_id": marks[vocabulary.END],
        "quantization_config": weights.quantization_config(),
    }


def find(path: Path) -> Path:
    """The GGUF file: the path itself, or the only one in this folder.

    Raises:
        ExportError: there is none, or more than one.
    """
    if path.is_file():
        return path
    if not path.exists():
        raise ExportError(f"there is no file {path}")
    found = sorted(path.glob("*.gguf"))
    if len(found) != 1:
        raise ExportError(f"{path} has {len(found)} GGUF files; name the one to convert")
    return found[0]


def remove_leftovers(target: Path) -> None:
    """Remove what conversions that were killed have left beside the folder; one may be under way."""
    for left in target.parent.glob(f".{target.name}.*"):
        if time.time() - left.stat().st_mtime > _STALE_S:
            shutil.rmtree(left, ignore_errors=True)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _digest(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
