"""What is kept of an utterance's past changes nothing but the time that a step takes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from s3gen_fakes import CPU, Recorded, make_tokens, make_voice, stream

from parley.tts.s3gen.prompts import PromptPasts
from parley.tts.s3gen.synthesizer import AudioSynthesizer, Job
from parley.tts.s3gen.utterance import AudioUtterance, Plan
from parley.tts.s3gen.workspace import Workspace

TOKENS = make_tokens(230)


def streamed(synthesizer, voice, plan, tokens=TOKENS):
    utterance = Recorded(voice, plan, seed=5, rate=24_000)
    stream(synthesizer, utterance, tokens, 9)
    return utterance


@pytest.mark.parametrize("kind", ["networks", "guided_networks"])
@pytest.mark.parametrize("past_tokens", [0, 30])
def test_kept_or_recomputed(request, voice, kind, past_tokens):
    synthesizer = AudioSynthesizer(request.getfixturevalue(kind), CPU)
    tokens = TOKENS if kind == "networks" else TOKENS[:90]
    plan = Plan(past_tokens=past_tokens)
    kept = streamed(synthesizer, voice, plan, tokens)
    again = streamed(synthesizer, voice, replace(plan, recompute=True), tokens)
    assert (kept.mel - again.mel).abs().max() < 1e-5
    assert np.abs(kept.wave - again.wave).max() < 1e-4


def test_a_bounded_past_is_another_past(synthesizer, voice):
    near, far = (streamed(synthesizer, voice, Plan(past_tokens=tokens)).mel for tokens in (30, 0))
    assert (near[:, :84] - far[:, :84]).abs().max() < 1e-5, "42 tokens: nothing is further away"
    assert (near[:, -100:] - far[:, -100:]).abs().max() > 1e-3


def test_what_is_kept_is_bounded(synthesizer, voice):
    kept = {}
    for past_tokens in (0, 40):
        utterance = AudioUtterance(voice, Plan(past_tokens=past_tokens), seed=1, rate=24_000)
        utterance.push(make_tokens(600))
        while (end := utterance.next_end()) is not None:
            synthesizer.step([Job(utterance, end)])
            kept[past_tokens, end] = utterance._past

    def held(pieces, *names):
        return sum(getattr(piece, name).nbytes for piece in pieces for name in names)

    def frames(pieces):
        return sum(piece.step_keys.shape[-2] for piece in pieces)

    assert {frames(pieces) for (limit, _), pieces in kept.items() if limit} == {24, 80}
    assert max(frames(pieces) for (limit, _), pieces in kept.items() if not limit) == 1_000
    # Two steps, four layers, keys and values of two heads with 64 channels each, four bytes.
    assert held(kept[40, 500], "step_keys") == 80 * 2 * 4 * 2 * 2 * 64 * 4
    assert held(kept[40, 500], "token_keys", "frame_keys") == 500 * (2 + 2 * 2) * 2 * 64 * 4
    bounded, everything = (sum(piece.nbytes for piece in kept[limit, 500]) for limit in (40, 0))
    assert bounded < everything / 4
    # What was cut off is not held by what is left of it.
    for piece in kept[40, 500]:
        assert piece.step_keys.untyped_storage().nbytes() == piece.step_keys.nbytes


def test_a_step_costs_its_new_frames(synthesizer, voice, monkeypatch):
    lengths = []
    estimate = synthesizer._networks.flow.decoder.estimator.forward

    def counted(x, *others):
        lengths.append(x.shape[2])
        return estimate(x, *others)

    monkeypatch.setattr(synthesizer._networks.flow.decoder.estimator, "forward", counted)
    for seed in range(2):
        utterance = AudioUtterance(voice, Plan(max_step=1), seed=seed, rate=24_000)
        utterance.push(TOKENS[:100])
        utterance.end()
        while (end := utterance.next_end()) is not None:
            synthesizer.step([Job(utterance, end)])
    steps = [2 * chunk for chunk in (12, 13, 25, 50) for _ in range(2)]
    assert lengths == [80, 80, *steps, *steps], "the prompt once for both"


def test_prompts_are_shared_and_forgotten(synthesizer):
    voices = [make_voice(prompt, seed) for seed, prompt in enumerate((20, 0, 35, 20))]
    asked = []

    def make(missing):
        asked.append(len(missing))
        return synthesizer._prompt_pasts(missing)

    pasts = PromptPasts(make, voices=2)
    first = pasts.get([voices[0], voices[1], voices[0]])
    assert first[0] is first[2]
    assert first[1] is None
    assert first[0].prompt
    assert pasts.get([make_voice(20, 0)]) == [first[0]], "an equal voice is the same voice"
    pasts.get(voices[2:])
    assert len(pasts) == 2
    assert voices[0] not in pasts
    assert len([past for past in pasts.get(voices) if past is not None]) == 3, "more at once than are kept"
    assert len(pasts) == 2
    assert asked == [1, 2, 1]


def test_a_prompt_does_not_depend_on_what_is_made_beside_it(synthesizer):
    voices = [make_voice(prompt, seed) for seed, prompt in enumerate((20, 61, 7))]
    together = synthesizer._prompt_pasts(voices)
    for voice, past in zip(voices, together, strict=True):
        (alone,) = synthesizer._prompt_pasts([voice])
        assert past.tokens == len(voice.tokens)
        for name in ("token_keys", "frame_keys", "step_keys", "token_contexts", "step_contexts"):
            torch.testing.assert_close(getattr(past, name), getattr(alone, name), rtol=1e-4, atol=1e-4)


def test_a_workspace_grows_and_is_used_again():
    workspace, like = Workspace(), torch.zeros(1)
    large = workspace.take((4, 5), like)
    small = workspace.take((2, 3), like)
    assert small.shape == (2, 3)
    assert small.data_ptr() == large.data_ptr()
    assert workspace.take((3,), like.to(torch.bfloat16)).dtype == torch.bfloat16
