"""The small networks of tests/data/sherpa_onnx, and what a test changes of them."""

from __future__ import annotations

import json
from pathlib import Path

from parley.asr.families import load_model
from parley.runtime.onnx import open_session

ROOT = Path(__file__).resolve().parents[4]
FOLDERS = ROOT / "tests/data/sherpa_onnx"
EXPECTED = json.loads((FOLDERS / "expected.json").read_text(encoding="utf-8"))
FAMILIES = ("nemo_ctc", "zipformer_ctc", "zipformer", "paraformer", "sense_voice")


def load(family, open_network=open_session):
    return load_model(FOLDERS / family, family, open_network)


class Meta:
    def __init__(self, values):
        self.custom_metadata_map = values


class Tensor:
    def __init__(self, name, shape, kind="tensor(float)"):
        self.name, self.shape, self.type = name, shape, kind


class ChangedSession:
    """A session whose metadata, inputs, outputs or results are other ones."""

    def __init__(self, session, *, metadata=None, inputs=None, outputs=None, change=lambda results: results):
        self.session = session
        self.metadata = metadata or {}
        self.inputs, self.outputs = inputs, outputs
        self.change = change
        self.fed = []

    def get_inputs(self):
        return self.inputs or self.session.get_inputs()

    def get_outputs(self):
        return self.outputs or self.session.get_outputs()

    def get_modelmeta(self):
        own = self.session.get_modelmeta().custom_metadata_map | self.metadata
        return Meta({key: value for key, value in own.items() if value is not None})

    def run(self, names, feed, options=None):
        self.fed.append(feed)
        return self.change(self.session.run(names, feed, options))


def changing(file, **changes):
    """Opens sessions, that of one file with changes; keeps it as ``changed``."""

    def open_network(path):
        session = open_session(path)
        if path.name != file:
            return session
        open_network.changed = ChangedSession(session, **changes)
        return open_network.changed

    return open_network
