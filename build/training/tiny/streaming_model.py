"""A cache-aware streaming RNN-T that is small enough to train on one CPU core.

Everything but the size is as in ``nvidia/nemotron-speech-streaming-en-0.6b``: a FastConformer encoder
with causal convolutions and causal subsampling, features that are not normalised, attention in chunks
whose look-ahead is chosen when it runs, and a transducer without durations.
See https://arxiv.org/abs/2312.17279 (cache-aware streaming).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from nemo.collections.asr.models import EncDecRNNTBPEModel
from omegaconf import DictConfig, OmegaConf

from tiny.asr_model import DURATIONS, SILENCE, configuration

LEFT_CONTEXT = 70
"""Encoder frames (of 80 ms) before a chunk that its attention sees."""
LOOK_AHEADS = (13, 6, 1, 0)
"""Encoder frames that the first frame of a chunk waits for; a chunk has one frame more."""
DEFAULT_LOOK_AHEAD = 1
HISTORY = 9
"""Feature frames before a chunk that its subsampling sees."""
DROPOUT = 0.05
SPREAD = 4.0
"""Standard deviation of log-mel energies in speech."""
USUAL = -9.0
"""Mean of log-mel energies in speech."""


def streaming_configuration(tokenizer: Path) -> DictConfig:
    """NeMo's configuration of the model, for the tokenizer folder ``tokenizer``."""
    offline = configuration(tokenizer)
    del offline.model_defaults.tdt_durations, offline.model_defaults.num_tdt_durations
    del offline.joint.num_extra_outputs, offline.decoding.model_type, offline.decoding.durations
    changes = {
        "preprocessor": {"normalize": "NA"},
        "encoder": {
            "use_bias": True,
            # Training makes the table of positions longer by itself; a stream needs no more.
            "pos_emb_max_len": LEFT_CONTEXT + max(LOOK_AHEADS) + 1,
            "causal_downsampling": True,
            "att_context_size": [[LEFT_CONTEXT, look_ahead] for look_ahead in LOOK_AHEADS],
            "att_context_style": "chunked_limited",
            "conv_norm_type": "layer_norm",
            "conv_context_size": "causal",
            **dict.fromkeys(("dropout", "dropout_pre_encoder", "dropout_att"), DROPOUT),
        },
        # The model that this one starts from was trained with more; now a step should teach more.
        "decoder": {"prednet": {"dropout": 0.0}},
        "joint": {"jointnet": {"dropout": 0.0}},
    }
    merged = OmegaConf.merge(offline, changes)
    # Only its name is used, see `tiny.transducer_loss`.
    merged.loss = {"loss_name": "warprnnt_numba"}
    assert isinstance(merged, DictConfig)
    return merged


def build_streaming(tokenizer: Path) -> EncDecRNNTBPEModel:
    """The model with random weights, in evaluation mode."""
    model = EncDecRNNTBPEModel(cfg=streaming_configuration(tokenizer)).eval()
    model.encoder.pre_encode.register_forward_pre_hook(_scale, with_kwargs=True)
    look_ahead(model, DEFAULT_LOOK_AHEAD)
    return model


def look_ahead(model: EncDecRNNTBPEModel, frames: int) -> None:
    """Let the model wait for ``frames`` of :data:`LOOK_AHEADS` wherever it is not training."""
    model.encoder.set_default_att_context_size([LEFT_CONTEXT, frames])


def _scale(
    _module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Bring log-mel energies to a range that trains well, where 0 is silence: what convolutions pad with.

    It becomes a part of the exported encoder.
    """
    return args, {**kwargs, "x": (kwargs["x"] - SILENCE) / SPREAD}


def start_from_offline(model: EncDecRNNTBPEModel, weights: dict[str, torch.Tensor]) -> None:
    """Give a new streaming model what the trained offline model (``tiny.asr_model``) knows.

    What differs is brought over as nearly as it can be: the first convolution gets features of another
    mean, causal subsampling moves its frequency bands by one, a causal convolution sees only the past
    half of its window, batch normalisation becomes a bias, a scale and a layer normalisation, and the
    joint network loses its durations.
    """
    new = model.state_dict()
    for name, value in weights.items():
        if name in new and new[name].shape == value.shape:
            new[name] = value
    pre = "encoder.pre_encode"
    kernel = weights[f"{pre}.conv.0.weight"]
    mean = (USUAL - SILENCE) / SPREAD
    new[f"{pre}.conv.0.bias"] = weights[f"{pre}.conv.0.bias"] - mean * kernel.sum((1, 2, 3))
    width, columns = weights[f"{pre}.out.weight"].shape
    channels = kernel.shape[0]
    bands = weights[f"{pre}.out.weight"].view(width, channels, columns // channels)
    new[f"{pre}.out.weight"] = torch.nn.functional.pad(bands, (1, 0)).flatten(1)
    for layer in range(len(model.encoder.layers)):
        conv = f"encoder.layers.{layer}.conv"
        spread = (weights[f"{conv}.batch_norm.running_var"] + 1e-5).sqrt()
        kernel = weights[f"{conv}.depthwise_conv.weight"]
        half = kernel.shape[2] // 2
        causal = torch.nn.functional.pad(kernel[:, :, : half + 1], (half, 0))
        new[f"{conv}.depthwise_conv.weight"] = causal / spread[:, None, None]
        new[f"{conv}.depthwise_conv.bias"] = -weights[f"{conv}.batch_norm.running_mean"] / spread
    for name in ("weight", "bias"):
        # Without dropout the output layer has another number.
        new[f"joint.joint_net.1.{name}"] = weights[f"joint.joint_net.2.{name}"][: -len(DURATIONS)]
    for name, parameter in model.named_parameters():
        if name.endswith(".bias") and name not in weights and "depthwise" not in name:
            new[name] = torch.zeros_like(parameter)
    model.load_state_dict(new)
