"""Steps of many utterances: streamed audio, batches, the state between steps, seams."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from clicks import clicks, seam_scores
from random_streams import random_streams
from s3gen_fakes import CPU, Recorded, make_tokens, make_voice, stream

from parley.errors import InferenceError, InvalidInputError
from parley_torch.tts.s3gen.flow import Buckets, batch_rows
from parley_torch.tts.s3gen.scheduling import ChunkSchedule
from parley_torch.tts.s3gen.state import Workspace
from parley_torch.tts.s3gen.synthesizer import AudioSynthesizer, Job, PromptPasts
from parley_torch.tts.s3gen.utterance import SAMPLES_PER_TOKEN, AudioUtterance, Plan
from parley_torch.tts.s3gen.vocoder_state import VocoderJob, vocode

TOKENS = make_tokens(130)
LONG_TOKENS = make_tokens(230)


def whole(synthesizer, networks, voice, plan, *, rate=24_000, tokens=TOKENS):
    """Everything in one piece, the prompt too: spectrogram, 24 kHz samples, PCM."""
    utterance = AudioUtterance(voice, replace(plan, recompute=True), seed=5, rate=rate)
    utterance.push(tokens)
    utterance.end()
    mel = synthesizer.flow([utterance.row(len(tokens))])[0][0]
    with torch.inference_mode():
        wave = vocode(networks.vocoder, [VocoderJob(utterance.vocoder, mel, last=True)])[0].numpy()
    return mel, wave, utterance.output.push(wave, last=True)


@pytest.mark.parametrize(
    ("kind", "plan", "rate", "count", "pieces"),
    [
        *(
            ("networks", Plan(), rate, 130, pieces)
            for rate in (24_000, 22_050, 16_000)
            for pieces in (1, 7, 40, 130)
        ),
        ("guided_networks", Plan(), 24_000, 45, 5),
        ("networks", Plan(schedule=ChunkSchedule((20, 30)), hold_back=16), 24_000, 130, 10),
    ],
)
def test_streamed_is_whole(request, voice, *, kind, plan, rate, count, pieces):
    networks = request.getfixturevalue(kind)
    synthesizer, tokens = AudioSynthesizer(networks, CPU), TOKENS[:count]
    mel, wave, pcm = whole(synthesizer, networks, voice, plan, rate=rate, tokens=tokens)
    utterance = Recorded(voice, plan, seed=5, rate=rate)
    audio = np.concatenate(stream(synthesizer, utterance, tokens, pieces))
    assert wave.std() > 0.02, "a whisper would pass any test"
    assert len(wave) == count * SAMPLES_PER_TOKEN
    assert (utterance.mel - mel).abs().max() < 1e-5
    assert np.abs(utterance.wave - wave).max() < 1e-4
    assert abs(len(audio) - count * rate / 25) <= 1
    assert len(audio) == len(pcm)
    assert np.abs(audio.astype(int) - pcm).max() <= 3


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


def test_a_vocoder_without_state_clicks(networks, voice, synthesizer):
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


@pytest.mark.parametrize(("prompt", "count"), [(40, 1), (40, 2), (40, 3), (40, 14), (0, 20)])
def test_short_utterances(synthesizer, prompt, count):
    utterance = AudioUtterance(make_voice(prompt), Plan(), seed=1, rate=24_000)
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


def test_no_seam_of_any_utterance_clicks(synthesizer):
    scores = []
    for one in random_streams(synthesizer, random.Random(4), 30):
        assert one.clicks() == []
        assert len(one.audio) == pytest.approx(len(one.tokens) * one.rate / 25, abs=1)
        scores += list(seam_scores(one.audio, one.seams(), one.rate))
    assert len(scores) > 80
    assert max(scores) < 1.5, "seams are no rougher than what is around them"


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


def test_batches_have_the_sizes_of_buckets(synthesizer, voice):
    row = pushed(voice, make_tokens(20), plan=Plan(recompute=True)).row(12)
    buckets = Buckets((64, 320), (2, 8), ((50, 100),))
    batch = batch_rows([row], synthesizer.empty, Workspace(), buckets, keep=True)
    assert batch.noise.shape == (2, 80, 320)
    assert batch.past.positions.shape == (2, 100)


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


def test_a_failure_of_the_flow_ends_one_utterance(synthesizer, voice, monkeypatch):
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


def speak_nan(utterance):
    utterance.voice = replace(utterance.voice, embedding=np.full(192, np.nan, np.float32))


def excite_with_nan(utterance):
    utterance.vocoder.source.advance(torch.tensor([float("nan")], dtype=torch.float64))


@pytest.mark.parametrize(
    ("plan", "spoil", "part"),
    [
        (Plan(recompute=True), speak_nan, "the spectrogram holds"),
        (Plan(), speak_nan, "the past of a prompt holds"),
        (Plan(), excite_with_nan, "the waveform holds"),
    ],
)
def test_values_that_are_not_numbers_fail_one_utterance(synthesizer, plan, spoil, part):
    utterances = [pushed(make_voice(40, n), make_tokens(40, n), n, ended=True, plan=plan) for n in range(3)]
    spoil(utterances[1])
    results = synthesizer.step([Job(utterance, utterance.next_end()) for utterance in utterances])
    assert [isinstance(result, InferenceError) for result in results] == [False, True, False]
    assert part in str(results[1])
    assert all(np.abs(results[index]).max() > 0 for index in (0, 2))
    held = [utterance.voice in synthesizer._prompts for utterance in utterances]
    assert held == ([False] * 3 if plan.recompute else [True, "past" not in part, True])


def streamed(synthesizer, voice, plan, tokens=LONG_TOKENS):
    utterance = Recorded(voice, plan, seed=5, rate=24_000)
    stream(synthesizer, utterance, tokens, 9)
    return utterance


@pytest.mark.parametrize("kind", ["networks", "guided_networks"])
@pytest.mark.parametrize("past_tokens", [0, 30])
def test_kept_or_recomputed(request, voice, kind, past_tokens):
    synthesizer = AudioSynthesizer(request.getfixturevalue(kind), CPU)
    tokens = LONG_TOKENS if kind == "networks" else LONG_TOKENS[:90]
    plan = Plan(past_tokens=past_tokens)
    kept = streamed(synthesizer, voice, plan, tokens)
    again = streamed(synthesizer, voice, replace(plan, recompute=True), tokens)
    assert (kept.mel - again.mel).abs().max() < 1e-5
    assert np.abs(kept.wave - again.wave).max() < 1e-4


def test_a_bounded_past_is_another_past(synthesizer, voice):
    near, far = (streamed(synthesizer, voice, Plan(past_tokens=tokens)).mel for tokens in (30, 0))
    assert (near[:, :84] - far[:, :84]).abs().max() < 1e-5, "42 tokens: nothing is further away"
    assert (near[:, -100:] - far[:, -100:]).abs().max() > 1e-3


def test_the_past_is_bounded(synthesizer, voice):
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
    bounded, everything = (
        sum(tensor.nbytes for piece in kept[limit, 500] for tensor in piece.tensors) for limit in (40, 0)
    )
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
        utterance.push(LONG_TOKENS[:100])
        utterance.end()
        while (end := utterance.next_end()) is not None:
            synthesizer.step([Job(utterance, end)])
    steps = [2 * chunk for chunk in (12, 13, 25, 50) for _ in range(2)]
    assert lengths == [80, 80, *steps, *steps], "the prompt once for both"


def test_prompts_are_shared_and_bounded(synthesizer):
    voices = [make_voice(prompt, seed) for seed, prompt in enumerate((20, 0, 35, 20))]
    asked = []

    def make(missing):
        asked.append(len(missing))
        return synthesizer._compute_prompt_pasts(missing)

    pasts = PromptPasts(make, max_voices=2)
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


def test_a_prompt_does_not_depend_on_its_batch(synthesizer):
    voices = [make_voice(prompt, seed) for seed, prompt in enumerate((20, 61, 7))]
    together = synthesizer._compute_prompt_pasts(voices)
    for voice, past in zip(voices, together, strict=True):
        (alone,) = synthesizer._compute_prompt_pasts([voice])
        assert past.tokens == len(voice.tokens)
        for name in ("token_keys", "frame_keys", "step_keys", "token_contexts", "step_contexts"):
            torch.testing.assert_close(getattr(past, name), getattr(alone, name), rtol=1e-4, atol=1e-4)


def test_a_workspace_grows_and_is_reused():
    workspace, like = Workspace(), torch.zeros(1)
    large = workspace.allocate((4, 5), like)
    small = workspace.allocate((2, 3), like)
    assert small.shape == (2, 3)
    assert small.data_ptr() == large.data_ptr()
    assert workspace.allocate((3,), like.to(torch.bfloat16)).dtype == torch.bfloat16
