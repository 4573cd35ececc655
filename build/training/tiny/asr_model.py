"""A Parakeet TDT that is small enough to train on one CPU core.

Everything but the size is as in ``nvidia/parakeet-tdt-0.6b-v2``: a FastConformer encoder with
depthwise-striding 8x subsampling, per-feature normalised log-mel input, an LSTM prediction
network, a joint network with token and duration outputs, and BPE tokens.
See https://arxiv.org/abs/2304.06795 (TDT) and https://arxiv.org/abs/2305.05084 (FastConformer).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import sentencepiece
from nemo.collections.asr.models import EncDecRNNTBPEModel
from omegaconf import DictConfig, OmegaConf

SAMPLE_RATE = 16_000
N_FFT = 512
WINDOW = 400
HOP = 160
FEATURES = 80
SILENCE = math.log(2**-24)
"""Log-mel energy of digital silence, before any normalisation."""
SUBSAMPLING = 8
FRAME = HOP * SUBSAMPLING
"""Samples per encoder output frame (80 ms)."""

VOCABULARY = 128
DURATIONS = (0, 1, 2, 3, 4)
MAX_SYMBOLS = 10
MAX_FRAMES = 640
"""Longest input in encoder frames (51 s): its position table is stored in the exported encoder."""

ENCODER_WIDTH = 144
ENCODER_LAYERS = 4
ENCODER_HEADS = 4
PREDICTION_WIDTH = 160
PREDICTION_LAYERS = 1
JOINT_WIDTH = 160


def make_tokenizer(texts: Iterable[str], folder: Path) -> sentencepiece.SentencePieceProcessor:
    """Train the BPE tokenizer on ``texts`` into ``folder``, or load it if it is there."""
    model = folder / "tokenizer.model"
    if not model.exists():
        folder.mkdir(parents=True, exist_ok=True)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sorted(set(texts))),
            model_prefix=str(model.with_suffix("")),
            vocab_size=VOCABULARY,
            model_type="bpe",
            character_coverage=1.0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            num_threads=1,
            minloglevel=1,
        )
        tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(model))
        pieces = [tokenizer.id_to_piece(token) for token in range(VOCABULARY)]
        (folder / "vocab.txt").write_text(
            "\n".join(pieces), encoding="utf-8"
        )  # NeMo needs it beside the model.
    return sentencepiece.SentencePieceProcessor(model_file=str(model))


def configuration(tokenizer: Path) -> DictConfig:
    """NeMo's configuration of the model, for the tokenizer folder ``tokenizer``."""
    return OmegaConf.create(
        {
            "sample_rate": SAMPLE_RATE,
            "compute_eval_loss": False,
            "log_prediction": False,
            "model_defaults": {
                "enc_hidden": ENCODER_WIDTH,
                "pred_hidden": PREDICTION_WIDTH,
                "joint_hidden": JOINT_WIDTH,
                "tdt_durations": list(DURATIONS),
                "num_tdt_durations": len(DURATIONS),
            },
            "tokenizer": {"dir": str(tokenizer), "type": "bpe"},
            "preprocessor": {
                "_target_": "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor",
                "sample_rate": SAMPLE_RATE,
                "normalize": "per_feature",
                "window_size": WINDOW / SAMPLE_RATE,
                "window_stride": HOP / SAMPLE_RATE,
                "window": "hann",
                "features": FEATURES,
                "n_fft": N_FFT,
                "frame_splicing": 1,
                "dither": 0.0,
                "pad_to": 0,
            },
            "encoder": {
                "_target_": "nemo.collections.asr.modules.ConformerEncoder",
                "feat_in": FEATURES,
                "feat_out": -1,
                "n_layers": ENCODER_LAYERS,
                "d_model": ENCODER_WIDTH,
                "use_bias": False,
                "subsampling": "dw_striding",
                "subsampling_factor": SUBSAMPLING,
                "subsampling_conv_channels": 64,
                "causal_downsampling": False,
                "ff_expansion_factor": 4,
                "self_attention_model": "rel_pos",
                "n_heads": ENCODER_HEADS,
                "att_context_size": [-1, -1],
                "att_context_style": "regular",
                "xscaling": False,
                "untie_biases": True,
                "pos_emb_max_len": MAX_FRAMES,
                "conv_kernel_size": 9,
                "conv_norm_type": "batch_norm",
                "conv_context_size": None,
                "dropout": 0.1,
                "dropout_pre_encoder": 0.1,
                "dropout_emb": 0.0,
                "dropout_att": 0.1,
            },
            "decoder": {
                "_target_": "nemo.collections.asr.modules.RNNTDecoder",
                "normalization_mode": None,
                "random_state_sampling": False,
                "blank_as_pad": True,
                "prednet": {
                    "pred_hidden": PREDICTION_WIDTH,
                    "pred_rnn_layers": PREDICTION_LAYERS,
                    "t_max": None,
                    "dropout": 0.2,
                },
            },
            "joint": {
                "_target_": "nemo.collections.asr.modules.RNNTJoint",
                "log_softmax": None,
                "preserve_memory": False,
                "fuse_loss_wer": False,
                "fused_batch_size": 16,
                "num_extra_outputs": len(DURATIONS),
                "jointnet": {"joint_hidden": JOINT_WIDTH, "activation": "relu", "dropout": 0.2},
            },
            "decoding": {
                "strategy": "greedy_batch",
                "model_type": "tdt",
                "durations": list(DURATIONS),
                "greedy": {"max_symbols": MAX_SYMBOLS},
            },
            # Only its name is used: NeMo's own loss has no CPU kernel, see `tiny.transducer_loss`.
            "loss": {"loss_name": "tdt", "tdt_kwargs": {"durations": list(DURATIONS)}},
            "optim": {"name": "adamw", "lr": 1e-3},
        }
    )


def build(tokenizer: Path) -> EncDecRNNTBPEModel:
    """The model with random weights, in evaluation mode."""
    return EncDecRNNTBPEModel(cfg=configuration(tokenizer)).eval()
