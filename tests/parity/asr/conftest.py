"""Small NeMo models with random weights, exported by the code that exports the real ones.

The last layers are sharpened, so that a random model writes many different tokens and blanks: its
every decision is compared.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import parley  # noqa: F401 - first: it turns ONNX Runtime's telemetry off

# isort: split
import numpy as np
import pytest
import soundfile
import torch
from nemo.utils import logging as nemo_logging
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / folder) for folder in ("build", "build/training", "src")]

from nemo.collections.asr.models import EncDecRNNTBPEModel  # noqa: E402
from nemo.collections.asr.models.rnnt_bpe_models_prompt import EncDecRNNTBPEModelWithPrompt  # noqa: E402
from omegaconf import OmegaConf, open_dict  # noqa: E402

from checkpoints import NemoEntry, NemoLimits  # noqa: E402
from nemo_export import layout  # noqa: E402
from parley.asr import checkpoint  # noqa: E402
from parley.asr.parakeet.networks import OnnxEncoder, OnnxJoint  # noqa: E402
from parley.runtime.onnx import open_session  # noqa: E402
from tiny.asr_model import configuration, make_tokenizer  # noqa: E402
from tiny.streaming_model import LOOK_AHEADS, streaming_configuration  # noqa: E402

CLIPS = ROOT / "tests/data/asr_eval"
nemo_logging.setLevel(logging.ERROR)
torch.set_num_threads(1)
BLANKS = 0.6
"""Share of blanks."""
SPREAD = 3.0
"""Standard deviation of the joint network's scores."""
EXACT = NemoLimits(encoder=1e-4, tokens=0.0)


@dataclass
class Offline:
    """A NeMo model, its export, and the export's networks."""

    model: EncDecRNNTBPEModel
    export: checkpoint.Checkpoint
    encoder: OnnxEncoder
    joint: OnnxJoint


@dataclass(frozen=True)
class Truth:
    """What NeMo makes of a recording."""

    features: NDArray[np.float32]
    encoded: NDArray[np.float32]
    hypothesis: Any


def read_clips() -> list[NDArray[np.float32]]:
    entries = json.loads((CLIPS / "manifest.json").read_text())
    return [soundfile.read(CLIPS / entry["file"], dtype="float32")[0] for entry in entries[:36:6]]


@pytest.fixture(scope="session")
def clips() -> list[NDArray[np.float32]]:
    return read_clips()


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    texts = [entry["text"] for entry in json.loads((CLIPS / "manifest.json").read_text()) if entry["text"]]
    make_tokenizer(texts * 3, folder)
    return folder


def entry_of(kind, **changes):
    look_aheads = tuple(sorted(LOOK_AHEADS)) if kind == "rnnt-streaming" else ()
    values = {
        "name": "small",
        "kind": kind,
        "precisions": (),
        "accuracy": {"fp32": EXACT},
        "look_aheads": look_aheads,
        "default_look_ahead": 1,
    }
    return NemoEntry(**values | changes)


@torch.no_grad()
def sharpened(model):
    """Make decisions depend on what is heard and on what was written, and most of them a blank."""
    blank = model.tokenizer.vocab_size
    layer = model.joint.joint_net[-1]
    model.joint.pred.weight.mul_(4)
    model.joint.enc.weight.mul_(8)
    model.preprocessor.featurizer.dither = 0.0
    model.preprocessor.featurizer.pad_to = 0
    model.eval()
    audio = torch.tensor(read_clips()[0])[None]
    features, lengths = model.preprocessor(input_signal=audio, length=torch.tensor([audio.shape[1]]))
    encoded, _ = model.encoder(audio_signal=features, length=lengths)
    encoded = model._apply_prompt_to_encoded(encoded)
    predicted, _ = model.decoder.predict(torch.arange(blank)[None], add_sos=False)
    scores = model.joint.joint(encoded.transpose(1, 2), predicted)[0].flatten(0, 1)
    # No token and no duration is likelier than another, on the average; and scores are not so large
    # that single precision cannot tell them apart.
    scale = SPREAD / scores.std(0).mean()
    layer.bias.sub_(scores.mean(0)).mul_(scale)
    layer.weight.mul_(scale)
    scores = (scores - scores.mean(0)) * scale
    lead = scores[:, :blank].max(1).values - scores[:, blank]
    layer.bias[blank] += lead.quantile(BLANKS)
    return model


PROMPTS = {"en-US": 0, "en": 0, "es-ES": 2, "auto": 5}


def prompted(tokenizer):
    """A cache-aware model with language prompts, as Nemotron 3.5 is one."""
    torch.manual_seed(0)
    config = streaming_configuration(tokenizer)
    with open_dict(config):
        config.model_defaults.initialize_prompt_feature = True
        config.model_defaults.num_prompts = 8
        config.model_defaults.prompt_dictionary = PROMPTS
    model = EncDecRNNTBPEModelWithPrompt(cfg=config)
    with torch.no_grad():
        # So that frames stay apart behind two random layers, and languages too.
        model.prompt_kernel[0].weight.mul_(6)
        model.prompt_kernel[2].weight.mul_(3)
    model.set_inference_prompt("en-US")
    return sharpened(model)


def built(kind, tokenizer):
    torch.manual_seed(0)
    if kind == "rnnt-streaming":
        return sharpened(EncDecRNNTBPEModel(cfg=streaming_configuration(tokenizer)))
    config = configuration(tokenizer)
    if kind == "rnnt":
        with open_dict(config):
            del config.model_defaults.tdt_durations, config.model_defaults.num_tdt_durations
            del config.joint.num_extra_outputs, config.decoding.model_type, config.decoding.durations
            config.loss = OmegaConf.create({"loss_name": "warprnnt_numba"})
    return sharpened(EncDecRNNTBPEModel(cfg=config))


@pytest.fixture(scope="session", params=["tdt", "rnnt"])
def offline(request, tokenizer, tmp_path_factory):
    model = built(request.param, tokenizer)
    folder = tmp_path_factory.mktemp(request.param)
    layout.export(model, entry_of(request.param), folder)
    export = checkpoint.load(folder)
    return Offline(
        model, export, OnnxEncoder(open_session(export.encoder)), OnnxJoint(open_session(export.decoder))
    )


@pytest.fixture(scope="session")
def streaming(tokenizer, tmp_path_factory):
    """A cache-aware model and the folder of its export."""
    model = built("rnnt-streaming", tokenizer)
    folder = tmp_path_factory.mktemp("streaming")
    layout.export(model, entry_of("rnnt-streaming"), folder)
    return model, folder


@pytest.fixture(scope="session")
def prompted_streaming(tokenizer, tmp_path_factory):
    """The same with language prompts."""
    model = prompted(tokenizer)
    folder = tmp_path_factory.mktemp("prompted")
    layout.export(model, entry_of("rnnt-streaming"), folder)
    return model, folder


def strategy(model, **changes):
    """Let NeMo decode in another way."""
    config = model.cfg.decoding.copy()
    with open_dict(config):
        for name, value in changes.items():
            config[name] = value
    model.change_decoding_strategy(config, verbose=False)


CONFIDENCE = {
    "preserve_token_confidence": True,
    "preserve_word_confidence": True,
    "exclude_blank": True,
    "aggregation": "mean",
    "tdt_include_duration": False,
    "method_cfg": {"name": "entropy", "entropy_type": "tsallis", "alpha": 0.33, "entropy_norm": "exp"},
}


@torch.no_grad()
def nemo_reads(model, clip):
    features, lengths = model.preprocessor(
        input_signal=torch.tensor(clip)[None], length=torch.tensor([len(clip)])
    )
    features = features[:, :, : int(lengths[0])]
    encoded, encoded_lengths = model.encoder(audio_signal=features, length=lengths)
    (hypothesis,) = model.decoding.rnnt_decoder_predictions_tensor(
        encoded, encoded_lengths, return_hypotheses=True
    )
    return Truth(features[0].numpy(), encoded[0, :, : int(encoded_lengths[0])].numpy(), hypothesis)


@pytest.fixture(scope="session")
def truths(offline, clips):
    strategy(offline.model, compute_timestamps=True, confidence_cfg=CONFIDENCE)
    return [nemo_reads(offline.model, clip) for clip in clips]
