"""A published Chatterbox checkpoint as the folder that ``t3``, ``s3gen`` and ``voice_enrollment`` load."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from chatterbox_export import accuracy, upstream, upstream_models
from chatterbox_export.default_voice import read_default_voice
from chatterbox_export.entries import CONDITIONALS, ConversionError, Entry
from chatterbox_export.tensors import check_shapes, read, write
from parley.errors import ParleyError
from parley_torch.tts.t3.checkpoint import T3Shape, read_shape
from parley_torch.tts.t3.text import load_reader
from parley_torch.tts.voices.enrollment import checkpoint as enrollment_checkpoint
from parley_torch.tts.voices.objects import FolderObjects
from parley_torch.tts.voices.store import VoiceStore
from parley_torch.tts.voices.voice import MAX_VOICE_BYTES, Voice

MANIFEST = "manifest.json"
VOICES = "voices"
SOURCE = ".source.json"
"""The file that ``scripts/fetch_models`` writes next to its downloads."""
_PACKAGES = ("torch", "safetensors", "transformers")
_UPSTREAM = "chatterbox-tts"
_Build: TypeAlias = Callable[[Mapping[str, Tensor]], nn.Module]


def convert(entry: Entry, source: Path, models: Path) -> accuracy.Accuracy:
    """Check the published files, convert them, compare the result with upstream and put it in place.

    Args:
        entry: what to make.
        source: folder of the published files.
        models: folder of all weights; the result is in a folder of the entry's name.

    Raises:
        ConversionError: a file is missing or not what it should be, or what is served would be too far from
            upstream. What was made before stays.
    """
    missing = [name for name in _published(entry) if not (source / name).is_file()]
    if missing:
        raise ConversionError(
            f"{source} is without {', '.join(missing)}: get it with `scripts/fetch_models {entry.source}`"
        )
    models.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=models, prefix=f".{entry.name}.") as temporary:
        folder = Path(temporary) / entry.name
        folder.mkdir()
        try:
            shape, parameters = _write_networks(entry, source, folder)
            digest = enrollment_checkpoint.load(folder).digest
            load_reader(folder, shape)
        except ParleyError as error:  # of the code that serves
            raise ConversionError(str(error)) from error
        voice = read_default_voice(source / CONDITIONALS, entry, digest)
        asyncio.run(_keep(voice, folder / VOICES))
        measured = accuracy.measure(entry, source, folder, voice)
        measured.check(entry)
        _describe(entry, source, folder, {"t3": asdict(shape), "parameters": parameters}, measured)
        _put(folder, models / entry.name)
    return measured


def _published(entry: Entry) -> list[str]:
    files = entry.files
    return [files.t3[0], files.s3gen[0], files.voice_encoder[0], *files.tokenizer, CONDITIONALS]


def _write_networks(entry: Entry, source: Path, folder: Path) -> tuple[T3Shape, dict[str, int]]:
    """Write all networks; the T3's shape, and the parameters of each."""
    files = entry.files
    shape = _shape(entry, source / files.t3[0])
    parameters = {
        "t3": _network(source, folder, files.t3, lambda tensors: upstream_models.t3(shape, tensors)),
        "voice_encoder": _network(
            source, folder, files.voice_encoder, lambda _: upstream_models.voice_encoder()
        ),
        "s3gen": _network(source, folder, files.s3gen, upstream_models.s3gen),
    }
    for name in (*files.tokenizer, *files.tokenizer_extras):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    return shape, parameters


def _shape(entry: Entry, path: Path) -> T3Shape:
    shape = read_shape(path)
    if shape.variant != entry.variant:
        raise ConversionError(f"{path} is of the variant {shape.variant}; {entry.name} is {entry.variant}")
    return shape


def _network(source: Path, folder: Path, names: tuple[str, str], build: _Build) -> int:
    """Check a file and put it into the folder; its number of parameters."""
    published, ours = source / names[0], folder / names[1]
    tensors = read(published)
    _check(published, tensors, build)
    if published.suffix == ours.suffix:
        # It is safe already: it stays what it is, and takes no room twice where links are possible.
        try:
            ours.hardlink_to(published.resolve())
        except OSError:
            shutil.copyfile(published, ours)
    else:
        write(tensors, ours)
    return sum(tensor.numel() for tensor in tensors.values())


def _check(path: Path, tensors: Mapping[str, Tensor], build: _Build) -> None:
    """Compare names and shapes with those of upstream's own model."""
    try:
        with torch.device("meta"):
            model = build(tensors)
    except KeyError as error:
        raise ConversionError(f"{path} has tensors missing: {error.args[0]}") from error
    expected = {
        name: tensor.shape
        for name, tensor in model.state_dict().items()
        if name in tensors or name not in upstream_models.OPTIONAL
    }
    check_shapes(path, tensors, expected)


async def _keep(voice: Voice, folder: Path) -> None:
    await VoiceStore(FolderObjects(folder, MAX_VOICE_BYTES)).put(voice)


def _describe(
    entry: Entry, source: Path, folder: Path, sizes: Mapping[str, Any], measured: accuracy.Accuracy
) -> None:
    """Write ``manifest.json``: what it is, how it was made, and all files with their checksums."""
    described = source / SOURCE
    origin = json.loads(described.read_text(encoding="utf-8")) if described.is_file() else {}
    manifest = {
        "name": entry.name,
        "variant": entry.variant,
        "sizes": sizes,
        "source": {
            "repository": origin.get("repository"),
            "revision": origin.get("commit"),
            "files": [_file(source / name, source) for name in _published(entry)],
        },
        "accuracy": asdict(measured),
        "versions": {name: version(name) for name in _PACKAGES} | {_UPSTREAM: _upstream_version()},
        "files": [_file(path, folder) for path in sorted(folder.rglob("*")) if path.is_file()],
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _upstream_version() -> str:
    (found,) = distributions(name=_UPSTREAM, path=[str(upstream.FOLDER)])
    return found.version


def _file(path: Path, folder: Path) -> dict[str, Any]:
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return {"name": str(path.relative_to(folder)), "size": path.stat().st_size, "sha256": digest}


def _put(made: Path, folder: Path) -> None:
    """Move a conversion into place; what was there before goes only when it is complete."""
    if folder.exists():
        folder.replace(made.with_name("before"))
    made.replace(folder)
