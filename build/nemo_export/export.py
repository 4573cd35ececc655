"""A .nemo file to the folders of all its precisions."""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

# Its two lines at every start are about the telemetry of trainings, which is not needed here.
logging.getLogger("nv_one_logger").setLevel(logging.ERROR)

from nemo.collections.asr.models import ASRModel  # noqa: E402
from nemo.core.connectors.save_restore_connector import SaveRestoreConnector  # noqa: E402
from nemo.utils import logging as nemo_logging  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

from nemo_export import accuracy, archive, layout, prompts  # noqa: E402
from nemo_export.accuracy import Accuracy, Heard  # noqa: E402
from nemo_export.archive import Entry, ExportError, Precision  # noqa: E402


@dataclass(frozen=True)
class Reference:
    """Recordings, and what NeMo makes of them."""

    clips: Sequence[NDArray]
    heard: Sequence[Heard]
    tags: Sequence[str]
    """Languages of the recordings, in turn; none of a model without prompts."""


def export(entry: Entry, nemo: Path, models: Path, clips: Path, count: int) -> None:
    """Make all precisions of an entry.

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
    with tempfile.TemporaryDirectory(dir=models, prefix=f".{entry.name}.") as temporary:
        work = Path(temporary)
        model = restore(nemo, _new(work / "checkpoint"))
        source = layout.file_entry(nemo)
        recordings = accuracy.read_clips(clips, count)
        fp32 = _new(work / "fp32")
        layout.export(model, entry, fp32)
        heard = accuracy.by_nemo(model, entry, recordings)
        reference = Reference(recordings, heard, prompts.compared(model))
        del model
        refused = {}
        for precision in entry.limits:
            folder = fp32
            if precision != "fp32":
                folder = _new(work / precision)
                layout.convert(entry, fp32, folder, precision)
            measured = _measure(entry, precision, fp32, folder, reference)
            name = entry.folder(precision)
            _note(
                f"{name}: encoder {measured.encoder:.1e}, tokens {measured.tokens:.2%} "
                f"of {measured.reference_tokens} differ"
            )
            if excess := measured.excess(entry.limits[precision]):
                refused[precision] = f"{name} is not written, because it is too far from NeMo: {excess}"
            else:
                layout.describe(entry, precision, folder, source, asdict(measured))
        good = [precision for precision in entry.limits if precision not in refused]
        for precision in good:
            _put(work / precision, models / entry.folder(precision))
    if good:
        names = ", ".join(map(entry.folder, good))
        _note(f"written into {models}: {names} ({time.monotonic() - began:.0f} s)")
    if refused:
        raise ExportError("\n".join(refused.values()))


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


def _measure(entry: Entry, precision: Precision, fp32: Path, folder: Path, reference: Reference) -> Accuracy:
    runnable = folder
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        if precision in ("fp16", "bf16"):
            runnable = Path(temporary)
            layout.convert(entry, fp32, runnable, precision, emulate=True)
        return accuracy.compare(
            reference.heard, accuracy.by_export(runnable, entry, reference.clips, reference.tags)
        )


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _put(made: Path, folder: Path) -> None:
    """Move an export into place; a folder that is there loses the files of the same names only."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(made.iterdir()):
        shutil.move(path, folder / path.name)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
