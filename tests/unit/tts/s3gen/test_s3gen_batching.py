"""An utterance does not notice what is made beside it."""

import dataclasses

import numpy as np
import pytest
import torch
from s3gen_fakes import CPU, Recorded, make_tokens, make_voice, stream

from parley.errors import InferenceError
from parley.tts.s3gen.buckets import Buckets
from parley.tts.s3gen.synthesizer import AudioSynthesizer, Job
from parley.tts.s3gen.utterance import AudioUtterance, Plan


def pushed(voice, tokens, seed=0, *, ended=False, plan=None):
    utterance = Recorded(voice, plan or Plan(), seed=seed, rate=24_000)
    utterance.push(tokens)
    if ended:
        utterance.end()
    return utterance


def unequal(plan):
    """Utterances with prompts, lengths and ends of many kinds."""
    cases = [(40, 15, False), (0, 28, False), (75, 53, True), (20, 1, True), (40, 103, False)]
    return [
        pushed(make_voice(prompt, seed), make_tokens(count, seed), seed, ended=ended, plan=plan)
        for seed, (prompt, count, ended) in enumerate(cases)
    ]


@pytest.mark.parametrize("kind", ["networks", "guided_networks"])
@pytest.mark.parametrize("buckets", [Buckets(), Buckets((64, 320), (2, 8))], ids=["exact", "padded"])
def test_flow_of_a_ragged_batch(request, kind, buckets):
    networks = request.getfixturevalue(kind)
    padded = AudioSynthesizer(networks, CPU, buckets=buckets)
    alone = AudioSynthesizer(networks, CPU)
    rows = [utterance.row(utterance.next_end()) for utterance in unequal(Plan(recompute=True))]
    together, _ = padded.flow(rows)
    for row, mel in zip(rows, together, strict=True):
        (expected,), _ = alone.flow([row])
        assert mel.shape == expected.shape
        assert mel.shape[1] == row.frames - 2 * row.prompt
        assert (mel - expected).abs().max() < 1e-5


def test_audio_of_many_streams_is_that_of_each_alone(synthesizer):
    speakers = [(make_voice(30 + 7 * n, n), make_tokens(30 + 11 * n, n)) for n in range(6)]
    expected = []
    for seed, (voice, tokens) in enumerate(speakers):
        utterance = Recorded(voice, Plan(), seed=seed, rate=16_000)
        stream(synthesizer, utterance, tokens, 5)
        expected.append(utterance.wave)
    utterances = [Recorded(voice, Plan(), seed=n, rate=16_000) for n, (voice, _) in enumerate(speakers)]
    batches, position = [], 0
    while not all(utterance.finished for utterance in utterances):
        position += 5
        for number, utterance in enumerate(utterances):
            tokens = speakers[number][1]
            begin = position - 3 * number  # each later than the one before
            if begin - 5 >= 0 and not utterance.ended:
                utterance.push(tokens[utterance.tokens : begin])
                if utterance.tokens == len(tokens):
                    utterance.end()
        jobs = [Job(u, end) for u in utterances if (end := u.next_end()) is not None]
        if jobs:
            assert not any(isinstance(pcm, InferenceError) for pcm in synthesizer.step(jobs))
            batches.append(len(jobs))
    assert max(batches) > 2
    for utterance, wave in zip(utterances, expected, strict=True):
        assert len(utterance.wave) == len(wave)
        assert np.abs(utterance.wave - wave).max() < 1e-4


def test_one_that_cannot_be_made_fails_alone(synthesizer, voice, monkeypatch):
    good, bad = pushed(voice, make_tokens(20)), pushed(voice, make_tokens(20, seed=2))
    bad_tokens = torch.from_numpy(make_tokens(20, seed=2)[:15])
    embed = synthesizer._networks.flow.input_embedding.forward

    def fail_on_bad(tokens):
        if any(torch.equal(row[:15], bad_tokens) for row in tokens):
            raise RuntimeError("out of memory")
        return embed(tokens)

    monkeypatch.setattr(synthesizer._networks.flow.input_embedding, "forward", fail_on_bad)
    audio, error = synthesizer.step([Job(good, 12), Job(bad, 12)])
    assert isinstance(error, InferenceError)
    assert len(audio) == 7 * 480


def test_rows_need_no_prompt(synthesizer):
    utterance = AudioUtterance(make_voice(0), Plan(), seed=1, rate=24_000)
    audio = stream(synthesizer, utterance, make_tokens(20), 20)
    assert sum(map(len, audio)) == 20 * 960


def poisoned(voice):
    """The same voice with a speaker of whom nothing but NaN is made."""
    return dataclasses.replace(voice, embedding=np.full_like(voice.embedding, np.nan))


def test_a_spectrogram_that_is_not_a_number_fails_alone(synthesizer):
    plan = Plan(recompute=True)
    good, bad = make_voice(40, 1), poisoned(make_voice(40, 2))
    utterances = [pushed(voice, make_tokens(40, 3), ended=True, plan=plan) for voice in (good, bad, good)]
    results = synthesizer.step([Job(utterance, utterance.next_end()) for utterance in utterances])
    assert [isinstance(result, InferenceError) for result in results] == [False, True, False]
    assert "spectrogram" in str(results[1])
    assert all(np.abs(results[index]).max() > 0 for index in (0, 2))


def test_a_voice_whose_past_is_not_a_number_is_not_kept(networks, synthesizer):
    good, bad = make_voice(40, 1), poisoned(make_voice(40, 2))
    utterances = [pushed(voice, make_tokens(40, 3), ended=True) for voice in (good, bad)]
    results = synthesizer.step([Job(utterance, utterance.next_end()) for utterance in utterances])
    assert [isinstance(result, InferenceError) for result in results] == [False, True]
    assert good in synthesizer._prompts
    assert bad not in synthesizer._prompts


def test_a_waveform_that_is_not_a_number_fails_alone(synthesizer):
    utterances = [pushed(make_voice(40, seed), make_tokens(40, seed), seed, ended=True) for seed in (1, 2)]
    utterances[1].vocoder.source.advance(torch.tensor([float("nan")], dtype=torch.float64))
    results = synthesizer.step([Job(utterance, utterance.next_end()) for utterance in utterances])
    assert [isinstance(result, InferenceError) for result in results] == [False, True]
    assert "waveform" in str(results[1])
