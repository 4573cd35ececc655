"""Our T3 against that of chatterbox-tts, with the same random weights.

Serving's own code computes the prompt; the generation loop is the reference that the vLLM
models are held against, token for token, by the tests of ``tests/torch/tts/t3``.
"""

from __future__ import annotations

import importlib
import types
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from chatterbox_export import upstream_models
from chatterbox_export.small_t3 import write_small_t3
from chatterbox_export.t3_reference import Reference
from parley_torch.tts.t3.checkpoint import find_checkpoint, read_shape
from parley_torch.tts.t3.prompt import PromptEncoder
from parley_torch.tts.t3.request import TokenSampling, TokenVoice
from parley_torch.tts.t3.text import load_reader

COUNT = 60
TEXTS = ["hello there - it's 5:30, isn't it", "The rain;  in Spain...", "Well — “yes”"]


@pytest.fixture(scope="module")
def upstream():
    return types.SimpleNamespace(
        t3=importlib.import_module("chatterbox.models.t3.t3"),
        cond=importlib.import_module("chatterbox.models.t3.modules.cond_enc"),
    )


@pytest.fixture(scope="module", params=["original", "multilingual", "turbo"])
def both(request, tmp_path_factory):
    folder = write_small_t3(tmp_path_factory.mktemp("t3"), request.param, seed=5)
    checkpoint = find_checkpoint(folder)
    shape = read_shape(checkpoint)
    tensors = load_file(checkpoint)
    theirs = upstream_models.fill(upstream_models.t3(shape, tensors), tensors)
    return types.SimpleNamespace(
        folder=folder,
        shape=shape,
        theirs=theirs,
        prompts=PromptEncoder.load(checkpoint, shape),
        reference=Reference(checkpoint, shape),
    )


def voice(shape, tokens=None):
    noise = np.random.default_rng(1)
    count = shape.max_prompt_tokens if tokens is None else tokens
    return TokenVoice(noise.standard_normal(256, np.float32), noise.integers(0, 6561, count, np.int32))


def conditionals(upstream, voice, exaggeration):
    tokens = (
        torch.from_numpy(voice.prompt_tokens.astype(np.int64))[None] if voice.prompt_tokens.size else None
    )
    return upstream.cond.T3Cond(
        speaker_emb=torch.from_numpy(voice.speaker_embedding)[None],
        cond_prompt_speech_tokens=tokens,
        emotion_adv=exaggeration * torch.ones(1, 1, 1),
    )


def text_tokens(both):
    return [255, *range(3, 40), 0] if both.shape.guided else list(range(3, 40))


@pytest.mark.parametrize("tokens", [None, 11, 0])
@pytest.mark.parametrize("exaggeration", [0.25, 1.0])
@torch.inference_mode()
def test_prompts_are_the_same(both, upstream, tokens, exaggeration):
    someone = voice(both.shape, tokens)
    text = text_tokens(both)
    ours = both.prompts.encode(someone, text, exaggeration=exaggeration, guidance_weight=0.5)
    width, guided = both.shape.width, both.shape.guided
    theirs, _ = both.theirs.prepare_input_embeds(
        t3_cond=conditionals(upstream, someone, exaggeration),
        text_tokens=torch.tensor([text] * (2 if guided else 1)),
        speech_tokens=torch.full((2 if guided else 1, 1), 6561),
        cfg_weight=0.5,
    )
    rows = torch.stack(ours.embeddings.split(width, -1)) if guided else ours.embeddings[None]
    if guided:
        torch.testing.assert_close(rows[:, -1], rows[:, -2])  # the start token, a second time
        rows = rows[:, :-1]
    torch.testing.assert_close(rows, theirs, atol=5e-5, rtol=1e-4)  # two attentions in float32


DRAWS = [
    (0.5, TokenSampling(0.8, 1.0, 0, 0.05, 1.2)),
    (0.24, TokenSampling(0.6, 0.9, 0, 0.02, 2.0)),
    (1.0, TokenSampling(1.0, 0.95, 0, 0.0, 1.0)),
]
PICKS = ["best", "by chance"]


@pytest.mark.parametrize(("weight", "draw", "pick"), [(*how, pick) for how in DRAWS for pick in PICKS])
def test_the_same_tokens_are_drawn(both, upstream, monkeypatch, weight, draw, pick):  # noqa: PLR0917
    someone, text = voice(both.shape), text_tokens(both)
    if not both.shape.guided:
        draw = TokenSampling(draw.temperature, draw.top_p, 100, 0.0, draw.repetition_penalty)

    def draws():
        """Upstream draws with torch.multinomial; both sides get the same numbers."""
        generator = torch.Generator().manual_seed(11)

        def multinomial(probabilities, num_samples):
            assert num_samples == 1
            if pick == "best":
                return probabilities.argmax(-1, keepdim=True)
            noise = torch.empty_like(probabilities).exponential_(generator=generator)
            return (probabilities / noise).argmax(-1, keepdim=True)

        return multinomial

    monkeypatch.setattr(torch, "multinomial", draws())
    shared = {
        "temperature": draw.temperature,
        "top_p": draw.top_p,
        "repetition_penalty": draw.repetition_penalty,
    }
    cond = conditionals(upstream, someone, 0.7)
    if both.shape.guided:
        if both.shape.variant == "multilingual":
            # Serving has no analysis of attention either.
            monkeypatch.setattr(upstream.t3, "AlignmentStreamAnalyzer", _no_analysis)
        theirs = both.theirs.inference(
            t3_cond=cond,
            text_tokens=torch.tensor([text, text]),
            max_new_tokens=COUNT,
            min_p=draw.min_p,
            cfg_weight=weight,
            **shared,
        )
    else:
        theirs = both.theirs.inference_turbo(
            cond, torch.tensor([text]), top_k=draw.top_k, max_gen_len=COUNT - 1, **shared
        )
    prompt = both.prompts.encode(someone, text, exaggeration=0.7, guidance_weight=weight)
    ours = draws()

    def choose(scores):
        return int(ours(scores[None].softmax(-1), num_samples=1))

    tokens, _ = both.reference.generate(prompt.embeddings, weight, draw, COUNT, choose)
    if not both.shape.guided and tokens[-1] == 6562:
        tokens.pop()  # upstream takes it off for Turbo
    assert theirs[0].tolist() == tokens
    assert len(set(tokens)) > 5


class _no_analysis:  # noqa: N801 - stands in for a function
    def __init__(self, *_, eos_idx, **__):
        self.eos_idx = eos_idx

    def step(self, logits, next_token=None):
        return logits


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_read_in_the_same_way(both, upstream, text, monkeypatch):
    reader = load_reader(both.folder, both.shape)
    ours = reader.read(text, "en")
    found = Path(upstream.t3.__file__).parents[2]
    tidy = _function(
        found
        / {"original": "tts.py", "multilingual": "mtl_tts.py", "turbo": "tts_turbo.py"}[both.shape.variant]
    )
    if both.shape.variant == "turbo":
        from transformers import AutoTokenizer

        theirs = AutoTokenizer.from_pretrained(both.folder)(tidy(text)).input_ids
    else:
        tokenizers = importlib.import_module("chatterbox.models.tokenizers.tokenizer")
        if both.shape.variant == "original":
            theirs = tokenizers.EnTokenizer(str(both.folder / "tokenizer.json")).encode(tidy(text))
        else:
            monkeypatch.setattr(tokenizers, "ChineseCangjieConverter", mock.Mock())
            name = both.folder / "grapheme_mtl_merged_expanded_v1.json"
            theirs = tokenizers.MTLTokenizer(str(name)).encode(tidy(text), language_id="en")
        theirs = [255, *theirs, 0]
    assert ours == theirs


def _function(path):
    """``punc_norm`` of a module that cannot be imported without its many dependencies."""
    source = path.read_text()
    start = source.index("def punc_norm")
    namespace = {}
    exec(source[start : source.index("@dataclass", start)], namespace)  # noqa: S102 - installed code
    return namespace["punc_norm"]
