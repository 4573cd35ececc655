"""A .nemo file to the folders of all its precisions.

Half precision is compared with products rounded to it but computed in single precision: CPUs have no such
products. A graph is in ``encoder-model.onnx``, or ``encoder-r0.onnx`` and so on for the look-aheads of a
streaming model, which share ``encoder.weights``.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from msgspec.structs import asdict

# Its two lines at every start are about the telemetry of trainings, which is not needed here.
logging.getLogger("nv_one_logger").setLevel(logging.ERROR)

from nemo.collections.asr.models import ASRModel  # noqa: E402
from nemo.core.connectors.save_restore_connector import SaveRestoreConnector  # noqa: E402
from nemo.utils import logging as nemo_logging  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from checkpoints import NemoEntry, describe, file_entry  # noqa: E402
from comparison import ExportError, check, note  # noqa: E402
from nemo_export import accuracy, archive, layout, prompts  # noqa: E402

_PACKAGES = ("nemo_toolkit", "torch", "onnx", "onnxruntime")


def export(entry: NemoEntry, nemo: Path, models: Path, clips: Sequence[NDArray]) -> None:
    """Make all precisions of an entry.

    Args:
        entry: what to make.
        nemo: the checkpoint.
        models: folder of all weights.
        clips: recordings to compare with NeMo on, f32 within ±1.

    Raises:
        ExportError: the checkpoint is not what the entry says, or a precision is too far from it. That
            one is not written; what was made before stays.
    """
    began = time.monotonic()
    nemo_logging.setLevel(logging.ERROR)
    # ONNX Runtime's quantiser recommends a step that the exporter has already done.
    logging.getLogger().setLevel(logging.ERROR)
    torch.manual_seed(0)
    models.mkdir(parents=True, exist_ok=True)
    written, refused = [], []
    with tempfile.TemporaryDirectory(dir=models, prefix=f".{entry.name}.") as temporary:
        work = Path(temporary)
        model = restore(nemo, _new(work / "checkpoint"))
        fp32 = _new(work / "fp32")
        layout.export(model, entry, fp32)
        heard, tags = accuracy.by_nemo(model, entry, clips), prompts.compared(model)
        del model
        for precision in entry.made:
            folder = runnable = fp32
            if precision != "fp32":
                folder = runnable = _new(work / precision)
                layout.convert(entry, fp32, folder, precision)
            if precision in ("fp16", "bf16"):
                runnable = _new(work / f"{precision}-emulated")
                layout.convert(entry, fp32, runnable, precision, emulate=True)
            differences = accuracy.compare(accuracy.by_export(runnable, entry, clips, tags), heard)
            if runnable != folder:
                shutil.rmtree(runnable)
            try:
                check(entry.folder(precision), "NeMo", differences, asdict(entry.accuracy[precision]))
            except ExportError as error:
                refused.append(str(error))
                continue
            facts = {"name": entry.name, "kind": entry.kind, "precision": precision}
            facts |= {"source": file_entry(nemo, nemo.parent), "recordings": len(clips)}
            describe(folder, facts | {"accuracy": differences}, _PACKAGES)
            written.append(precision)
        for precision in written:
            put(work / precision, models / entry.folder(precision))
    if written:
        names = ", ".join(map(entry.folder, written))
        note(f"written into {models}: {names} ({time.monotonic() - began:.0f} s)")
    if refused:
        raise ExportError("\n".join(refused))


def restore(nemo: Path, folder: Path) -> ASRModel:
    """The model in a .nemo file, for inference on a CPU.

    Args:
        nemo: the file.
        folder: empty; what is in the file goes there, and need not stay.

    Raises:
        ExportError: the file cannot be used.
    """
    archive.unpack(nemo, folder)
    connector = SaveRestoreConnector()
    connector.model_extracted_dir = str(folder)
    try:
        return ASRModel.restore_from(str(nemo), map_location="cpu", save_restore_connector=connector).eval()
    except Exception as error:  # whatever is wrong with a configuration or with weights
        raise ExportError(f"NeMo cannot load {nemo}: {type(error).__name__}: {error}") from error


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def put(made: Path, folder: Path) -> None:
    """Move an export into place; a folder that is there loses the files of the same names only."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(made.iterdir()):
        shutil.move(path, folder / path.name)
