"""Models of the gpu profile's sizes, made of the project's tiny ones.

Recognisers and language model are the tiny ones made larger: they take as much work as the published ones
and compute what the tiny ones compute, so that examples/conversation.toml is understood and answered. T3 and
S3Gen hum.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from chatterbox_export.small_listeners import write_random_voices
from comparison import ExportError, note
from parley.launcher.options import ROOT
from widened.chatterbox import widen_t3, write_s3gen
from widened.decoder import QWEN3_4B, T3, DecoderSize, widen_qwen3
from widened.fastconformer import TransducerSize, widen_recognizer

_TINY = ROOT / "models"
_LEAST_LAYERS = 4


def write(folder: Path, layers: int | None) -> None:
    """Make all models.

    Args:
        folder: made if need be.
        layers: at most so many of each network; None: as published.
    """
    if layers is not None and layers < _LEAST_LAYERS:
        raise ExportError(f"the tiny models have {_LEAST_LAYERS} layers")
    with ProcessPoolExecutor() as pool:
        for made in [pool.submit(make) for make in makers(folder, layers)]:
            path = made.result()
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            note(f"{size / 1e9:6.2f} GB  {path}")


def makers(folder: Path, layers: int | None) -> Iterator[Callable[[], Path]]:
    """What makes each of the models, in folders named as the gpu profile expects them."""
    most = layers or 1_000
    qwen3, t3 = (replace(size, layers=min(size.layers, most)) for size in (QWEN3_4B, T3))
    recognizer = replace(TransducerSize(), layers=min(TransducerSize().layers, most))
    yield partial(widen_qwen3, _TINY / "tiny-qwen3", folder / "Qwen3-4B-AWQ", qwen3)
    for source, encoder, name in (
        ("tiny-nemotron-streaming", "encoder-r1.onnx", "nemotron-speech-streaming-en-0.6b"),
        ("tiny-parakeet-tdt", "encoder-model.onnx", "parakeet-tdt-0.6b-v2"),
    ):
        yield partial(widen_recognizer, _TINY / source, encoder, folder / name, recognizer)
    yield partial(_make_chatterbox, folder / "chatterbox", t3)


def _make_chatterbox(folder: Path, t3: DecoderSize) -> Path:
    widen_t3(folder, t3)
    write_s3gen(folder)
    asyncio.run(write_random_voices(folder, ["default"]))
    return folder
