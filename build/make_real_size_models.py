"""Make models of the gpu profile's sizes without a download, to hold calls with on a GPU.

    .venv/bin/python build/make_real_size_models.py /dev/shm/models
    PARLEY_MODELS_DIR=/dev/shm/models scripts/serve --profile gpu

Recognisers and language model are the project's tiny ones made larger: they take as much work as the
published ones and compute what the tiny ones compute, so that examples/conversation.toml is understood and
answered. T3 and S3Gen hum. Takes 15 GB. ``--layers`` makes fewer layers than are published, for a trial on a
processor.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from chatterbox_export.small_listeners import write_random_voices
from parley.launcher.options import ROOT
from widened.chatterbox import widen_t3, write_s3gen
from widened.decoder import QWEN3_4B, T3, DecoderSize, widen_qwen3
from widened.fastconformer import TransducerSize, widen_recognizer

_TINY = ROOT / "models"
_LEAST_LAYERS = 4


def main() -> int:
    """Run the program."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", type=Path)
    arguments.add_argument(
        "--layers", type=int, help="at most so many of each network; default: as published"
    )
    chosen = arguments.parse_args()
    if chosen.layers is not None and chosen.layers < _LEAST_LAYERS:
        arguments.error(f"the tiny models have {_LEAST_LAYERS} layers")
    began = time.perf_counter()
    with ProcessPoolExecutor() as pool:
        for made in [pool.submit(make) for make in makers(chosen.folder, chosen.layers)]:
            path = made.result()
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            print(f"{size / 1e9:6.2f} GB  {path}", flush=True)
    print(f"made in {time.perf_counter() - began:.0f} s")
    return 0


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


if __name__ == "__main__":
    sys.exit(main())
