"""chatterbox-tts' own models, of the sizes that a checkpoint's tensors have.

Upstream's sizes are constants in its code, so they are replaced while a model is built. With a
published checkpoint they are what they are upstream, whose names and shapes it then must have.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from torch import Tensor, nn

from chatterbox_export import upstream
from parley_torch.tts.s3gen.checkpoint import count_layers
from parley_torch.tts.t3.checkpoint import T3Shape

OPTIONAL = ("tokenizer._mel_filters", "tokenizer.window")
"""Constants that not every published file holds."""
_HEAD_SIZE = 64
_FLOW = "flow.encoder.encoders.0."
_ESTIMATOR = "flow.decoder.estimator."
_X_VECTOR = "speaker_encoder.xvector."

Tensors = Mapping[str, Tensor]


def t3(shape: T3Shape, tensors: Tensors) -> Any:
    """``T3`` without weights.

    Raises:
        KeyError: a tensor that has a size is missing; it is named.
    """
    upstream.make_importable()
    sizes, config, conditioning, model = (
        importlib.import_module(f"chatterbox.models.t3.{name}")
        for name in ("llama_configs", "modules.t3_config", "modules.cond_enc", "t3")
    )
    settings = config.T3Config(text_tokens_dict_size=shape.text_vocabulary)
    if not shape.guided:
        # As ChatterboxTurboTTS.from_local sets them.
        settings.llama_config_name = "GPT2_medium"
        settings.speech_tokens_dict_size = shape.speech_vocabulary
        settings.input_pos_emb = None
        settings.speech_cond_prompt_len = shape.max_prompt_tokens
        settings.use_perceiver_resampler = False
        settings.emotion_adv = False
    published = sizes.LLAMA_CONFIGS[settings.llama_config_name]
    with _replaced(
        (conditioning, "Perceiver", {"pre_attention_query_size": shape.width, "embedding_dim": shape.width})
    ):
        own = {**published, **_transformer_sizes(shape, tensors)}
        with mock.patch.dict(sizes.LLAMA_CONFIGS, {settings.llama_config_name: own}):
            # Not only the transformer: the settings ask for its width, now and later.
            return model.T3(settings)


def _transformer_sizes(shape: T3Shape, tensors: Tensors) -> dict[str, int]:
    if not shape.guided:
        return {
            "vocab_size": len(tensors["tfmr.wte.weight"]),  # never used
            "n_embd": shape.width,
            "hidden_size": shape.width,
            "n_head": shape.heads,
            "n_layer": shape.layers,
            "n_positions": shape.context,
        }
    return {
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
    }


def voice_encoder() -> Any:
    """``VoiceEncoder`` without weights; it has one size."""
    upstream.make_importable()
    return importlib.import_module("chatterbox.models.voice_encoder").VoiceEncoder()


def s3gen(tensors: Tensors) -> Any:
    """``S3Token2Wav`` without weights: tokenizer, speaker encoder, flow and vocoder.

    Raises:
        KeyError: a tensor that has a size is missing; it is named.
    """
    upstream.make_importable()
    module, encoder, tokenizer = (
        importlib.import_module(f"chatterbox.models.{name}")
        for name in ("s3gen.s3gen", "s3gen.transformer.upsample_encoder", "s3tokenizer.s3tokenizer")
    )
    width = len(tensors["flow.encoder.after_norm.weight"])
    inner = len(tensors[f"{_ESTIMATOR}down_blocks.0.1.0.attn1.to_q.weight"])
    growth = len(tensors[f"{_X_VECTOR}block1.tdnnd1.cam_layer.linear_local.weight"])
    state, bands, _ = tensors["tokenizer.encoder.conv1.weight"].shape
    token_config = tokenizer.ModelConfig(
        n_mels=bands,
        n_audio_state=state,
        n_audio_head=state // _HEAD_SIZE,
        n_audio_layer=count_layers(tensors, r"tokenizer\.encoder\.blocks\.(\d+)\."),
    )
    replaced = (
        (encoder, "PreLookaheadLayer", {"channels": width}),
        (encoder, "Upsample1D", {"channels": width, "out_channels": width}),
        (
            module,
            "UpsampleConformerEncoder",
            {
                "input_size": width,
                "output_size": width,
                "attention_heads": len(tensors[f"{_FLOW}self_attn.pos_bias_u"]),
                "linear_units": len(tensors[f"{_FLOW}feed_forward.w_1.bias"]),
                "num_blocks": count_layers(tensors, r"flow\.encoder\.encoders\.(\d+)\."),
            },
        ),
        (
            module,
            "ConditionalDecoder",
            {
                "channels": [len(tensors[f"{_ESTIMATOR}final_proj.weight"][0])],
                "num_heads": inner // _HEAD_SIZE,
                "n_blocks": count_layers(tensors, r"flow\.decoder\.estimator\.down_blocks\.0\.1\.(\d+)\."),
                "num_mid_blocks": count_layers(tensors, r"flow\.decoder\.estimator\.mid_blocks\.(\d+)\."),
            },
        ),
        (
            module,
            "CausalMaskedDiffWithXvec",
            {"input_size": width, "vocab_size": len(tensors["flow.input_embedding.weight"])},
        ),
        (module, "HiFTGenerator", {"base_channels": len(tensors["mel2wav.conv_pre.bias"])}),
        (
            module,
            "ConvRNNF0Predictor",
            {"cond_channels": len(tensors["mel2wav.f0_predictor.condnet.0.bias"])},
        ),
        (
            module,
            "CAMPPlus",
            {"growth_rate": growth, "init_channels": len(tensors[f"{_X_VECTOR}tdnn.linear.weight"])},
        ),
        (module, "S3Tokenizer", {"config": token_config}),
    )
    with (
        _replaced(*replaced),
        mock.patch.object(tokenizer.S3TokenizerV2.__init__, "__defaults__", (token_config,)),
    ):
        # Its tokenizer hands the sizes on to the spectrogram only; the network takes a default.
        model = module.S3Token2Wav(meanflow=f"{_ESTIMATOR}time_embed_mixer.weight" in tensors)
    layers = model.flow.encoder.up_encoders
    model.flow.encoder.up_encoders = layers[: count_layers(tensors, r"flow\.encoder\.up_encoders\.(\d+)\.")]
    return model


def fill(model: nn.Module, tensors: Tensors) -> Any:
    """The model with weights, all but the constants that it has computed."""
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    if set(missing) - set(OPTIONAL) or unexpected:
        raise ValueError(f"missing are {missing}, unexpected are {unexpected}")
    return model.eval().requires_grad_(requires_grad=False)


@contextmanager
def _replaced(*changes: tuple[Any, str, dict[str, Any]]) -> Iterator[None]:
    """Let classes of upstream's modules be made with other options than the code says."""
    with ExitStack() as stack:
        for module, name, options in changes:
            made = functools.partial(_make, getattr(module, name), options)
            stack.enter_context(mock.patch.object(module, name, made))
        yield


def _make(kind: Any, own: Mapping[str, Any], *values: Any, **options: Any) -> Any:
    return kind(*values, **{**options, **own})
