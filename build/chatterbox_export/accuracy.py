"""How far what is served is from chatterbox-tts itself, with the same weights and the same noise."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chatterbox_export import upstream_models
from chatterbox_export.files import FILES
from chatterbox_export.t3_reference import Reference
from chatterbox_export.tensors import read
from checkpoints import ChatterboxEntry
from comparison import largest_difference
from parley_torch.tts.s3gen import checkpoint as s3gen_checkpoint
from parley_torch.tts.s3gen.flow import AudioVoice as FlowVoice
from parley_torch.tts.s3gen.synthesizer import AudioSynthesizer
from parley_torch.tts.s3gen.utterance import AudioUtterance, Plan
from parley_torch.tts.s3gen.vocoder import HOP
from parley_torch.tts.t3.checkpoint import read_shape
from parley_torch.tts.t3.prompt import PromptEncoder
from parley_torch.tts.t3.request import SPEECH_CODES, START_OF_SPEECH
from parley_torch.tts.t3.request import TokenVoice as T3Voice
from parley_torch.tts.voices.voice import Voice

_RATE = 24_000
_EXAGGERATION = 0.7
_TEXT, _SPEECH, _PROMPT = 40, 30, 50
"""Tokens: enough for every layer to matter, few enough for a CPU."""

Tokens = NDArray[np.int64]


def measure(entry: ChatterboxEntry, source: Path, folder: Path, voice: Voice) -> dict[str, float]:
    """Compare the serving code on the converted files with upstream's on the published ones.

    The differences by measure are those of :class:`checkpoints.ChatterboxLimits`.
    """
    files = FILES[entry.variant]
    t3 = _t3_difference(source / files.t3[0], folder / files.t3[1], voice)
    tensors = read(source / files.s3gen[0])
    theirs = upstream_models.fill(upstream_models.s3gen(tensors), tensors)
    networks = s3gen_checkpoint.load(folder / files.s3gen[1])
    mel, frames = _mel_difference(theirs, networks, voice)
    pitch, audio = _audio_difference(theirs, networks, frames)
    return {"t3": t3, "mel": mel, "pitch": pitch, "audio": audio}


def _t3_difference(published: Path, converted: Path, voice: Voice) -> float:
    shape = read_shape(converted)
    rng = np.random.default_rng(0)
    text = rng.integers(3, 200, _TEXT).tolist()
    speech = rng.integers(0, SPEECH_CODES, _SPEECH).tolist()
    speaker = T3Voice(voice.speaker_embedding, voice.t3_prompt_tokens[: shape.max_prompt_tokens])
    prompt = PromptEncoder.load(converted, shape).encode(
        speaker, text, exaggeration=_EXAGGERATION, guidance_weight=0.5
    )
    ours = Reference(converted, shape).logits(prompt.embeddings, speech)
    tensors = read(published)
    theirs = upstream_models.fill(upstream_models.t3(shape, tensors), tensors)
    expected = t3_logits(theirs, speaker, text, speech)
    return largest_difference(ours, expected) / float(expected.std())


@torch.inference_mode()
def t3_logits(model: Any, voice: T3Voice, text: Sequence[int], speech: Sequence[int]) -> Tensor:
    """What upstream's T3 makes of the text and some speech, as :meth:`Reference.logits`."""
    rows = 1 if model.is_gpt else 2
    heard = torch.from_numpy(voice.prompt_tokens.astype(np.int64))[None]
    cond = importlib.import_module("chatterbox.models.t3.modules.cond_enc").T3Cond(
        speaker_emb=torch.from_numpy(voice.speaker_embedding)[None],
        cond_prompt_speech_tokens=heard if heard.numel() else None,
        emotion_adv=_EXAGGERATION * torch.ones(1, 1, 1),
    )
    begin = torch.full((rows, 1), START_OF_SPEECH)
    prompt, _ = model.prepare_input_embeds(
        t3_cond=cond, text_tokens=torch.tensor([text] * rows), speech_tokens=begin, cfg_weight=0.5
    )
    # As its ``inference`` goes on: guided models get the start token twice.
    tokens = list(speech) if model.is_gpt else [START_OF_SPEECH, *speech]
    fed = model.speech_emb(torch.tensor(tokens))
    if not model.is_gpt:
        places = [model.speech_pos_emb.get_fixed_embedding(place)[0, 0] for place in range(len(tokens))]
        fed = fed + torch.stack(places)
    everything = torch.cat([prompt, fed.expand(rows, -1, -1)], dim=1)
    hidden = model.tfmr(inputs_embeds=everything, use_cache=False).last_hidden_state
    logits: Tensor = model.speech_head(hidden[:, -len(speech) - 1 :])
    return logits


def _mel_difference(theirs: Any, networks: s3gen_checkpoint.Networks, voice: Voice) -> tuple[float, Tensor]:
    """The difference, and upstream's spectrogram."""
    prompt = min(_PROMPT, len(voice.prompt_tokens))
    speaker = FlowVoice(
        voice.speaker, voice.prompt_tokens[:prompt].astype(np.int64), voice.prompt_mel[: 2 * prompt]
    )
    tokens = np.random.default_rng(0).integers(0, SPEECH_CODES, _SPEECH)
    ours, noise = served_mel(networks, speaker, tokens, Plan(full_attention=True))
    expected = upstream_mel(theirs.flow, speaker, tokens, noise, meanflow=theirs.meanflow)
    return largest_difference(ours, expected), expected


def served_mel(
    networks: s3gen_checkpoint.Networks, voice: FlowVoice, tokens: Tokens, plan: Plan
) -> tuple[Tensor, Tensor]:
    """What the serving code makes of an utterance in one piece.

    Returns:
        The spectrogram ``[80, n]`` without the prompt, and the noise ``[P + n, 80]`` that was used.
    """
    utterance = AudioUtterance(voice, plan, seed=1, rate=_RATE)
    utterance.push(tokens)
    utterance.end()
    row = utterance.row(len(tokens))
    (mel,), _ = AudioSynthesizer(networks, torch.device("cpu")).flow([row])
    return mel, torch.from_numpy(row.noise)


@torch.inference_mode()
def upstream_mel(flow: Any, voice: FlowVoice, tokens: Tokens, noise: Tensor, *, meanflow: bool) -> Tensor:
    """What upstream's flow makes of it: ``[80, n]``."""
    matching = importlib.import_module("chatterbox.models.s3gen.flow_matching")
    with (
        mock.patch.object(matching.torch, "randn_like", lambda like: noise[: like.shape[2]].T[None].clone()),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        mel, _ = flow.inference(
            torch.from_numpy(tokens)[None],
            torch.tensor([len(tokens)]),
            torch.from_numpy(voice.tokens)[None],
            torch.tensor([len(voice.tokens)]),
            torch.from_numpy(voice.mel)[None],
            None,
            torch.from_numpy(voice.embedding)[None],
            finalize=True,
            n_timesteps=2 if meanflow else 10,
            meanflow=meanflow,
        )
    frames: Tensor = mel[0]
    return frames


@torch.inference_mode()
def _audio_difference(
    theirs: Any, networks: s3gen_checkpoint.Networks, frames: Tensor
) -> tuple[float, float]:
    """Of the pitch in hertz, and of the samples where both are excited with the same noise."""
    mel, vocoder = frames[None], networks.vocoder
    pitch = vocoder.f0_predictor(mel)
    off = largest_difference(pitch.float(), theirs.mel2wav.f0_predictor(mel))
    source = 0.1 * torch.randn(1, HOP * mel.shape[2], generator=torch.Generator().manual_seed(0))
    expected = theirs.mel2wav.decode(mel, source[None])
    return off, largest_difference(vocoder(mel, source), expected)
