"""The streaming recogniser on torch: texts, slots, failures, and that nothing is captured while serving."""

import numpy as np
import pytest
import torch
from device_fakes import (
    LOOK_AHEADS,
    CountedCapture,
    add,
    begin,
    make_recognizer,
    recognize,
    same_tokens,
    step,
)

from parley.asr.decoding.boosting import compile_phrases
from parley.asr.decoding.words import text_of, words_of
from parley.asr.streaming import encoder as streaming_checkpoint
from parley.errors import InferenceError, ModelLoadingError, OverloadedError, UnsupportedVersionError
from parley.launcher.options import ROOT
from parley.models.nemotron_streaming import load_recognizer
from parley.runtime.batching import RowsNotFiniteError
from parley.runtime.onnx import open_session
from parley_torch.asr import memory, streaming
from parley_torch.asr.loading import DeviceSettings, choose_device, load_streaming
from parley_torch.asr.offline import RunSizes

CHUNKS = {80: 8, 160: 16, 560: 56, 1120: 112}


@pytest.fixture(scope="module")
def export():
    return streaming_checkpoint.load(ROOT / "models" / streaming_checkpoint.DEFAULT)


@pytest.fixture(scope="module")
def capture():
    return CountedCapture()


@pytest.fixture(scope="module")
def recognizer(export, capture):
    return make_recognizer(export, capture=capture)


@pytest.fixture(scope="module")
def onnx(export):
    return load_recognizer(export, LOOK_AHEADS, open_session, slots=8, audio=400_000)[0]


@pytest.fixture(scope="module")
def recordings(spoken):
    return sorted((clip.audio for clip in spoken), key=len)[:8]


@pytest.fixture(autouse=True)
def nothing_is_captured_and_no_slot_is_lost(recognizer, capture):
    before = capture.captured
    yield
    assert capture.captured == before
    assert recognizer.free == 8


def tokens_of(utterances):
    assert not [utterance.failure for utterance in utterances if utterance.failure]
    return [utterance.tokens() for utterance in utterances]


def test_texts_are_those_of_onnx_at_every_look_ahead(recognizer, onnx, recordings, capture):
    chunks = [CHUNKS[LOOK_AHEADS[row % 4]] for row in range(len(recordings))]
    replayed = capture.replayed
    found = tokens_of(recognize(recognizer, recordings, chunks))
    assert capture.replayed > replayed
    expected = tokens_of(recognize(onnx, recordings, chunks))
    assert sum(len(tokens.ids) for tokens in expected) > 20
    for own, other in zip(found, expected, strict=True):
        assert same_tokens(own, other)


def test_every_size_is_prepared_once(capture):
    # Four look-aheads, three numbers of rows; a beginning and more steps of decoding.
    assert capture.captured == 4 * 3 * 2


def test_interleaved_streams_get_what_they_get_alone(recognizer, recordings):
    together = tokens_of(recognize(recognizer, recordings[:3], [8, 8, 16], piece=3_000))
    # Slots and rows of the pool are taken again, in another order.
    for row in (2, 0, 1):
        (alone,) = tokens_of(recognize(recognizer, [recordings[row]], [[8, 8, 16][row]], piece=3_000))
        assert same_tokens(together[row], alone)


def test_more_streams_than_the_largest_size_are_several_steps(recognizer, recordings):
    found = tokens_of(recognize(recognizer, recordings[:6], [16] * 6))
    for row in (0, 5):
        (alone,) = tokens_of(recognize(recognizer, [recordings[row]], [16]))
        assert same_tokens(found[row], alone)


def test_a_step_that_is_not_kept_leaves_no_trace(recognizer, recordings):
    audio = recordings[1]
    (expected,) = tokens_of(recognize(recognizer, [audio], [16], piece=5_000))
    utterance = begin(recognizer, 16)
    for at in range(0, len(audio), 5_000):
        last = at + 5_000 >= len(audio)
        # What a step hears that fails for another reason.
        fork = utterance.fork()
        noise = np.random.default_rng(at).integers(-9_000, 9_000, 5_000).astype(np.int16)
        add(recognizer, fork, noise)
        assert recognizer.recognize([fork]).utterances == [fork]
        add(recognizer, utterance, audio[at : at + 5_000], last=last)
        step(recognizer, [utterance])
    recognizer.release(utterance.slot)
    assert same_tokens(utterance.tokens(), expected)


def test_values_that_are_not_finite_fail_alone(recognizer, recordings, monkeypatch):
    expected = tokens_of(recognize(recognizer, recordings[:2], [16, 16]))
    (victim, *others) = (begin(recognizer, 16) for _ in range(3))
    for utterance, audio in zip((victim, *others), (recordings[2], *recordings[:2]), strict=True):
        add(recognizer, utterance, audio[:8_000])
    step(recognizer, [victim, *others])
    pool = recognizer._device._pool
    pool.convolved[:, recognizer._rows[victim.slot]] = torch.nan
    for utterance, audio in zip((victim, *others), (recordings[2], *recordings[:2]), strict=True):
        add(recognizer, utterance, audio[8_000:], last=True)
    step(recognizer, [victim, *others])
    assert isinstance(victim.failure, InferenceError)
    assert str(victim.failure) == "the streaming encoder's output is not finite"
    for utterance, other in zip(others, expected, strict=True):
        assert same_tokens(utterance.tokens(), other)
    slot = victim.slot
    for utterance in (victim, *others):
        recognizer.release(utterance.slot)
    # Its rows are good for the next utterance.
    assert slot in {recognizer.acquire() for _ in range(8)}
    for own in range(8):
        recognizer.release(own)
    found = tokens_of(recognize(recognizer, [*recordings[:2]] * 4, [16] * 8))
    for row, tokens in enumerate(found):
        assert same_tokens(tokens, expected[row % 2])


def test_a_device_that_fails_fails_the_utterances_of_its_run(recognizer, recordings, monkeypatch):
    def broken(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    counted = []
    monkeypatch.setattr(recognizer._device._errors, "_end", counted.append)
    utterances = [begin(recognizer, 16) for _ in range(2)]
    monkeypatch.setattr(streaming.StreamingDevice, "_write", broken)
    for _ in range(3):
        for utterance in utterances:
            utterance.failure = None
            add(recognizer, utterance, recordings[0][:8_000])
        step(recognizer, utterances)
        assert all("failed on 2 rows: CUDA error" in str(utterance.failure) for utterance in utterances)
    assert "failed 3 times in a row" in counted[0]
    for utterance in utterances:
        recognizer.release(utterance.slot)


def test_phrases_are_decoded_on_the_host_beside_others(export, recognizer, onnx, recordings):
    checkpoint = export.checkpoint
    boosting = compile_phrases(["seattle", "delhi"], 4.0, checkpoint.vocabulary)
    expected = tokens_of(recognize(onnx, recordings[:3], [16] * 3, boosting=boosting))
    found = tokens_of(recognize(recognizer, recordings[:3], [16] * 3, boosting=boosting))
    plain = tokens_of(recognize(recognizer, recordings[:3], [16] * 3))
    for own, other in zip(found, expected, strict=True):
        assert same_tokens(own, other)
    assert [text_of(words_of(tokens, checkpoint)) for tokens in plain]
    # Side by side with one that expects none.
    mixed = [begin(recognizer, 16, boosting=boosting), begin(recognizer, 16)]
    for utterance, audio in zip(mixed, recordings[:2], strict=True):
        add(recognizer, utterance, audio, last=True)
    result = step(recognizer, mixed)
    assert result.decoder_ms > 0
    assert same_tokens(mixed[0].tokens(), expected[0])
    assert same_tokens(mixed[1].tokens(), plain[1])
    for utterance in mixed:
        recognizer.release(utterance.slot)


def test_infinite_scores_on_the_host_fail_alone_with_one_more_run(
    export, recognizer, recordings, monkeypatch
):
    boosting = compile_phrases(["seattle"], 4.0, export.checkpoint.vocabulary)
    expected = tokens_of(recognize(recognizer, recordings[:4], [16] * 4, boosting=boosting))
    utterances = [begin(recognizer, 16, boosting=boosting) for _ in range(4)]
    decoder, runs = recognizer._decoder, []

    class Poisoned:
        initial = decoder.initial

        def decode(self, encoded, *rest):
            runs.append(len(encoded))
            if len(encoded) == 4:
                raise RowsNotFiniteError("the joint network's scores are", [2])
            return decoder.decode(encoded, *rest)

    monkeypatch.setattr(recognizer, "_decoder", Poisoned())
    for utterance, audio in zip(utterances, recordings, strict=False):
        add(recognizer, utterance, audio, last=True)
    step(recognizer, utterances)
    assert runs[:2] == [4, 3]
    assert runs.count(4) == 1
    victim = utterances[2]
    assert str(victim.failure) == "the joint network's scores are not finite"
    for utterance, other in zip(utterances, expected, strict=True):
        assert utterance is victim or same_tokens(utterance.tokens(), other)
        recognizer.release(utterance.slot)


def test_beams_are_those_of_onnx(export, recordings):
    onnx, _ = load_recognizer(export, [160], open_session, slots=2, audio=400_000, beam_size=3)
    beams = make_recognizer(export, [160], slots=2, sizes=(2,), beam=3)
    expected = recognize(onnx, recordings[:2], [16, 16])
    for own, other in zip(recognize(beams, recordings[:2], [16, 16]), expected, strict=True):
        assert same_tokens(own.tokens(), other.tokens())
        assert [ids for ids, _ in own.readings()] == [ids for ids, _ in other.readings()]


def test_stream_beyond_the_limit_is_refused(recognizer):
    slots = [recognizer.acquire() for _ in range(8)]
    with pytest.raises(OverloadedError, match="all 8 slots"):
        recognizer.acquire()
    for slot in slots:
        recognizer.release(slot)
    with pytest.raises(AssertionError, match="twice"):
        recognizer.release(slots[0])


def test_missing_files_are_refused(export):
    settings = DeviceSettings(torch.device("cpu"))
    with pytest.raises(ModelLoadingError, match="no encoder for 240 ms"):
        load_streaming(export, [240], settings, slots=1, audio=16_000)
    if not torch.cuda.is_available():
        with pytest.raises(ModelLoadingError, match="torch finds no GPU 0"):
            choose_device("gpu", 0)


def test_versions_are_checked_before_a_gpu_is_looked_for(monkeypatch):
    monkeypatch.setattr("parley.runtime.versions.installed_version", lambda *_: "2.10.0")
    with pytest.raises(UnsupportedVersionError, match=r"PyTorch is 2\.10\.0"):
        choose_device("gpu", 0)
    assert choose_device("cpu", 0) == torch.device("cpu")


def test_memory_is_what_is_computed(export, recognizer):
    device = recognizer._device
    networks = device._networks
    encoder = networks.encoder.sizes
    decoder = memory.TransducerSizes(tokens=128, durations=0, layers=1, width=160, joint=160, inputs=144)
    computed = memory.streaming_memory(
        encoder,
        decoder,
        chunks=list(CHUNKS.values()),
        slots=8,
        left=70,
        row_sizes=(1, 2, 4),
        dtype=torch.float32,
    )
    own = sum(parameter.nbytes for parameter in networks.encoder.parameters())
    assert computed.weights == own + networks.transducer.weight_bytes
    rows = [device._pool.keys, device._pool.values, device._pool.convolved, device._pool.lengths]
    assert computed.pool == sum(t.nbytes for t in [*rows, device._pool.history]) + device._states.nbytes()
    assert computed.workspace > device._encoded.nbytes + device._audio.nbytes
    assert computed.total == computed.weights + computed.pool + computed.workspace


def test_memory_of_the_published_sizes():
    millions = [
        memory.encoder_parameters(sizes) / 1e6 for sizes in (memory.NEMOTRON_ENCODER, memory.PARAKEET_ENCODER)
    ]
    assert millions == pytest.approx([609, 609], rel=0.02)
    nemotron = memory.streaming_memory(
        memory.NEMOTRON_ENCODER,
        memory.NEMOTRON_DECODER,
        chunks=list(CHUNKS.values()),
        slots=128,
        left=70,
        row_sizes=streaming.ROW_SIZES,
        dtype=torch.bfloat16,
    )
    assert 1.2e9 < nemotron.weights < 1.3e9
    multilingual = memory.streaming_memory(
        memory.NEMOTRON_ENCODER,
        memory.NEMOTRON_35_DECODER,
        chunks=list(CHUNKS.values()),
        slots=128,
        left=70,
        row_sizes=streaming.ROW_SIZES,
        dtype=torch.bfloat16,
        prompt=memory.NEMOTRON_35_PROMPT,
    )
    decoders = memory.NEMOTRON_35_DECODER.parameters - memory.NEMOTRON_DECODER.parameters
    more = decoders + memory.NEMOTRON_35_PROMPT.parameters
    assert multilingual.weights == nemotron.weights + 4 * more
    assert multilingual.pool == nemotron.pool
    assert multilingual.workspace >= nemotron.workspace
    assert 1.8e9 < nemotron.pool < 2.0e9
    assert nemotron.workspace < 2e9
    runs = RunSizes((1_000, 4_500), (1, 2, 4, 8, 16, 32), 32_000)
    encoder = memory.encoder_memory(memory.PARAKEET_ENCODER, runs, dtype=torch.bfloat16)
    assert 1.2e9 < encoder.weights < 1.3e9
    assert encoder.pool == 0
    assert encoder.workspace < 2.5e9
    decoder = memory.decoder_memory(memory.PARAKEET_DECODER, RunSizes((256,), (1, 64), 256 * 64))
    assert 0.02e9 < decoder.weights < 0.05e9
    assert decoder.total < 0.3e9
