"""A published Chatterbox checkpoint as the folder that ``t3``, ``s3gen`` and ``voice_enrollment`` load.

Names and shapes of all tensors are compared with those of chatterbox-tts' own modules; no file can run code
when it is read. The code that serves is compared with chatterbox-tts itself.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path
from typing import TypeAlias

import msgspec
import torch
from torch import Tensor, nn

from chatterbox_export import accuracy, upstream, upstream_models
from chatterbox_export.default_voice import read_default_voice
from chatterbox_export.files import CONDITIONALS, FILES
from chatterbox_export.tensors import check_shapes, read, write
from checkpoints import ChatterboxEntry, describe, file_entry
from comparison import ExportError, check, note
from parley_torch.tts.t3.checkpoint import T3Shape, read_shape
from parley_torch.tts.t3.text import load_reader
from parley_torch.tts.voices.enrollment import checkpoint as enrollment_checkpoint
from parley_torch.tts.voices.objects import FolderObjects
from parley_torch.tts.voices.store import VoiceStore
from parley_torch.tts.voices.voice import MAX_VOICE_BYTES, Voice

VOICES = "voices"
SOURCE = ".source.json"
"""The file that ``scripts/fetch_models`` writes next to its downloads."""
_PACKAGES = ("torch", "safetensors", "transformers")
_UPSTREAM = "chatterbox-tts"
_Build: TypeAlias = Callable[[Mapping[str, Tensor]], nn.Module]


def convert(entry: ChatterboxEntry, source: Path, models: Path) -> None:
    """Check the published files, convert them, compare the result with upstream and put it in place.

    Raises:
        ExportError: a file is missing or not what it should be, or what is served would be too far from
            upstream. What was made before stays.
        ParleyError: the code that serves cannot load it.
    """
    missing = [name for name in _published(entry) if not (source / name).is_file()]
    if missing:
        raise ExportError(
            f"{source} is without {', '.join(missing)}: get it with `scripts/fetch_models {entry.source}`"
        )
    began = time.monotonic()
    torch.manual_seed(0)
    models.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=models, prefix=f".{entry.name}.") as temporary,
        warnings.catch_warnings(),
    ):
        # Of what chatterbox-tts, pinned to old versions, calls.
        warnings.simplefilter("ignore", FutureWarning)
        folder = Path(temporary) / entry.name
        folder.mkdir()
        shape, parameters = _write_networks(entry, source, folder)
        digest = enrollment_checkpoint.load(folder).digest
        load_reader(folder, shape)
        voice = read_default_voice(source / CONDITIONALS, entry, digest)
        asyncio.run(_keep(voice, folder / VOICES))
        differences = accuracy.measure(entry, source, folder, voice)
        check(entry.name, _UPSTREAM, differences, msgspec.structs.asdict(entry.accuracy))
        described = source / SOURCE
        origin = json.loads(described.read_text(encoding="utf-8")) if described.is_file() else {}
        facts = {
            "name": entry.name,
            "variant": entry.variant,
            "sizes": {"t3": asdict(shape), "parameters": parameters},
            "source": {
                "repository": origin.get("repository"),
                "revision": origin.get("commit"),
                "files": [file_entry(source / name, source) for name in _published(entry)],
            },
            "accuracy": differences,
            "versions": {_UPSTREAM: _upstream_version()},
        }
        describe(folder, facts, _PACKAGES)
        _put(folder, models / entry.name)
    note(f"written into {models}: {entry.name} ({time.monotonic() - began:.0f} s)")


def _published(entry: ChatterboxEntry) -> list[str]:
    files = FILES[entry.variant]
    return [files.t3[0], files.s3gen[0], files.voice_encoder[0], *files.tokenizer, CONDITIONALS]


def _write_networks(entry: ChatterboxEntry, source: Path, folder: Path) -> tuple[T3Shape, dict[str, int]]:
    """Write all networks; the T3's shape, and the parameters of each."""
    files = FILES[entry.variant]
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


def _shape(entry: ChatterboxEntry, path: Path) -> T3Shape:
    shape = read_shape(path)
    if shape.variant != entry.variant:
        raise ExportError(f"{path} is of the variant {shape.variant}; {entry.name} is {entry.variant}")
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
        raise ExportError(f"{path} has tensors missing: {error.args[0]}") from error
    expected = {
        name: tensor.shape
        for name, tensor in model.state_dict().items()
        if name in tensors or name not in upstream_models.OPTIONAL
    }
    check_shapes(path, tensors, expected)


async def _keep(voice: Voice, folder: Path) -> None:
    await VoiceStore(FolderObjects(folder, MAX_VOICE_BYTES)).put(voice)


def _upstream_version() -> str:
    (found,) = distributions(name=_UPSTREAM, path=[str(upstream.FOLDER)])
    return found.version


def _put(made: Path, folder: Path) -> None:
    """Move a conversion into place; what was there before goes only when it is complete."""
    if folder.exists():
        folder.replace(made.with_name("before"))
    made.replace(folder)
