"""Streamed audio is the audio of the whole utterance."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from s3gen_fakes import CPU, Recorded, make_tokens, make_voice, stream

from parley.errors import InvalidInputError
from parley.tts.clicks import clicks
from parley.tts.s3gen.schedule import ChunkSchedule
from parley.tts.s3gen.synthesizer import AudioSynthesizer, Job
from parley.tts.s3gen.utterance import SAMPLES_PER_TOKEN, AudioUtterance, Plan
from parley.tts.s3gen.vocoding import VocoderJob, vocode

TOKENS = make_tokens(130)


def whole(synthesizer, networks, voice, plan, *, rate=24_000, tokens=TOKENS):
    """Everything in one piece, the prompt too: spectrogram, 24 kHz samples, PCM."""
    utterance = AudioUtterance(voice, replace(plan, recompute=True), seed=5, rate=rate)
    utterance.push(tokens)
    utterance.end()
    mel = synthesizer.flow([utterance.row(len(tokens))])[0][0]
    with torch.inference_mode():
        wave = vocode(networks.vocoder, [VocoderJob(utterance.vocoder, mel, last=True)])[0].numpy()
    return mel, wave, utterance.output.push(wave, last=True)


@pytest.mark.parametrize("pieces", [1, 7, 40, 130])
@pytest.mark.parametrize("rate", [24_000, 22_050, 16_000])
def test_streamed_is_whole(synthesizer, networks, voice, pieces, rate):
    mel, wave, pcm = whole(synthesizer, networks, voice, Plan(), rate=rate)
    utterance = Recorded(voice, Plan(), seed=5, rate=rate)
    audio = np.concatenate(stream(synthesizer, utterance, TOKENS, pieces))
    assert wave.std() > 0.02, "a whisper would pass any test"
    assert len(wave) == len(TOKENS) * SAMPLES_PER_TOKEN
    assert (utterance.mel - mel).abs().max() < 1e-5
    assert np.abs(utterance.wave - wave).max() < 1e-4
    assert abs(len(audio) - len(TOKENS) * rate / 25) <= 1
    assert len(audio) == len(pcm)
    assert np.abs(audio.astype(int) - pcm).max() <= 3


def test_guided_flow_streams_exactly(guided_networks, voice):
    synthesizer = AudioSynthesizer(guided_networks, CPU)
    tokens = TOKENS[:45]
    mel, wave, _ = whole(synthesizer, guided_networks, voice, Plan(), tokens=tokens)
    utterance = Recorded(voice, Plan(), seed=5, rate=24_000)
    stream(synthesizer, utterance, tokens, 5)
    assert (utterance.mel - mel).abs().max() < 1e-5
    assert np.abs(utterance.wave - wave).max() < 1e-4


def test_other_chunk_sizes(synthesizer, networks, voice):
    plan = Plan(schedule=ChunkSchedule((20, 30)), hold_back=16)
    mel, wave, _ = whole(synthesizer, networks, voice, plan)
    utterance = Recorded(voice, plan, seed=5, rate=24_000)
    assert len(stream(synthesizer, utterance, TOKENS, 10)) == 5
    assert (utterance.mel - mel).abs().max() < 1e-5
    assert np.abs(utterance.wave - wave).max() < 1e-4


def test_too_little_context_shows(synthesizer, networks, voice):
    _, wave, _ = whole(synthesizer, networks, voice, Plan())
    utterance = Recorded(voice, Plan(hold_back=6), seed=5, rate=24_000)
    stream(synthesizer, utterance, TOKENS, 10)
    assert np.abs(utterance.wave - wave).max() > 1e-3, "the test above must be able to fail"


def test_a_chunk_does_not_depend_on_what_follows(synthesizer, voice):
    other = np.concatenate([TOKENS[:28], make_tokens(60, seed=9)])
    mels = []
    for tokens in (TOKENS, other):
        utterance = Recorded(voice, Plan(), seed=5, rate=24_000)
        stream(synthesizer, utterance, tokens, 10)
        mels.append(utterance.mel)
    assert (mels[0][:, :50] - mels[1][:, :50]).abs().max() < 1e-5
    assert (mels[0][:, 50:60] - mels[1][:, 50:60]).abs().max() > 0.05


def test_seed_and_voice_matter(synthesizer, voice):
    def mel(voice, seed):
        utterance = Recorded(voice, Plan(), seed=seed, rate=24_000)
        stream(synthesizer, utterance, TOKENS[:20], 20)
        return utterance.mel

    assert torch.equal(mel(voice, 5), mel(voice, 5))
    assert (mel(voice, 5) - mel(voice, 6)).abs().mean() > 0.1
    assert (mel(voice, 5) - mel(make_voice(40, seed=3), 5)).abs().mean() > 0.05


def test_no_seam_clicks(synthesizer, voice):
    seams = 0
    for seed in range(6):
        utterance = AudioUtterance(voice, Plan(), seed=seed, rate=22_050)
        pieces = stream(synthesizer, utterance, make_tokens(70, seed), 4)
        ends = np.cumsum([len(piece) for piece in pieces])[:-1]
        assert clicks(np.concatenate(pieces), list(ends), 22_050) == []
        seams += len(ends)
    assert seams >= 18


def test_a_vocoder_that_forgets_clicks(networks, voice, synthesizer):
    mel, _, _ = whole(synthesizer, networks, voice, Plan())
    with torch.inference_mode():
        pieces = [
            vocode(
                networks.vocoder,
                [VocoderJob(AudioUtterance(voice, Plan(), seed=5, rate=24_000).vocoder, part, last=True)],
            )[0]
            for part in mel.split(26, dim=1)
        ]
    audio = (torch.cat(pieces) * 32767).numpy().astype(np.int16)
    ends = np.cumsum([len(piece) for piece in pieces])[:-1]
    assert clicks(audio, list(ends), 24_000), "the test above must be able to fail"


@pytest.mark.parametrize("count", [1, 2, 3, 14])
def test_short_utterances(synthesizer, voice, count):
    utterance = AudioUtterance(voice, Plan(), seed=1, rate=24_000)
    audio = np.concatenate(stream(synthesizer, utterance, TOKENS[:count], 1))
    assert len(audio) == count * SAMPLES_PER_TOKEN


def test_an_utterance_without_tokens_is_finished_at_once(voice):
    utterance = AudioUtterance(voice, Plan(), seed=1, rate=24_000)
    utterance.end()
    assert utterance.finished
    assert utterance.next_end() is None


def test_first_audio_needs_fifteen_tokens(synthesizer, voice):
    utterance = AudioUtterance(voice, Plan(), seed=1, rate=24_000)
    utterance.push(TOKENS[:14])
    assert utterance.next_end() is None
    utterance.push(TOKENS[14:100])
    assert utterance.next_end() == 12, "the first audio must not wait for the rest"
    audio = stream(synthesizer, utterance, TOKENS[100:], 30)
    assert len(audio[0]) == 7 * 480


def test_full_attention_crossfades(networks, voice):
    synthesizer = AudioSynthesizer(networks, CPU)
    plan = Plan(full_attention=True)
    mel, _, _ = whole(synthesizer, networks, voice, plan)
    utterance = Recorded(voice, plan, seed=5, rate=24_000)
    pieces = stream(synthesizer, utterance, TOKENS, 10)
    assert sum(map(len, pieces)) == len(TOKENS) * SAMPLES_PER_TOKEN
    difference = (utterance.mel - mel).abs()
    assert 0 < difference.mean() < 0.2 * mel.std(), "close, but not the same"
    ends = np.cumsum([len(piece) for piece in pieces])[:-1]
    assert clicks(np.concatenate(pieces), list(ends), 24_000) == []


def test_limits(voice):
    utterance = AudioUtterance(voice, Plan(max_tokens=20), seed=1, rate=24_000)
    with pytest.raises(InvalidInputError, match="20 tokens"):
        utterance.push(make_tokens(21))
    utterance.push(make_tokens(20))
    utterance.end()
    with pytest.raises(InvalidInputError, match="last"):
        utterance.push(make_tokens(1))


def test_state_stays_small(synthesizer, voice):
    utterance = AudioUtterance(voice, Plan(), seed=1, rate=24_000)
    sizes = []
    for piece in np.array_split(make_tokens(700), 70):
        utterance.push(piece)
        if (end := utterance.next_end()) is not None:
            synthesizer.step([Job(utterance, end)])
            sizes.append(utterance.vocoder._mel.shape[1])
    assert max(sizes) <= 16 + 5 + 5 + 12
