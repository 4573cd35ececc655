"""The front end, the encoder, the decoders and the words, against NeMo and onnx-asr."""

from __future__ import annotations

import numpy as np
import onnx_asr
import pytest
import torch
from conftest import strategy

from parley.asr.decoding.beam import BeamDecoder
from parley.asr.decoding.greedy import TransducerDecoder
from parley.asr.decoding.words import text_of, words_of
from parley.asr.features import LogMel, LogMelStream


def greedy(offline, encoded):
    decoder = TransducerDecoder.of(offline.export, offline.joint)
    lengths = np.array([encoded.shape[1]], np.int64)
    (tokens,), _ = decoder.decode(encoded[None], lengths, decoder.initial_state(1))
    return tokens


def test_features_are_nemos(offline, clips, truths):
    mel = LogMel(offline.export.config)
    for clip, truth in zip(clips, truths, strict=True):
        np.testing.assert_allclose(mel.normalized(mel.offline(clip)), truth.features, atol=1e-4)


def test_features_in_pieces_are_those_of_the_whole(offline, clips):
    mel = LogMel(offline.export.config)
    for clip in clips[:2]:
        stream = LogMelStream(mel)
        pieces = [stream.push(clip[at : at + 317]) for at in range(0, len(clip), 317)]
        np.testing.assert_allclose(
            np.concatenate([*pieces, stream.finish()], axis=1), mel.offline(clip), atol=1e-5
        )


def test_the_encoder_is_nemos(offline, truths):
    for truth in truths:
        length = np.array([truth.features.shape[1]], np.int64)
        encoded, lengths = offline.encoder.encode(truth.features[None], length)
        np.testing.assert_allclose(encoded[0, :, : lengths[0]], truth.encoded, atol=1e-4)


def test_greedy_tokens_are_nemos(offline, truths):
    distinct = set()
    for truth in truths:
        tokens = greedy(offline, truth.encoded)
        assert tokens.ids.tolist() == truth.hypothesis.y_sequence.tolist()
        distinct |= set(tokens.ids.tolist())
    assert len(distinct) > 5, "the model decides nothing"


def test_a_batch_and_pieces_change_no_token(offline, truths):
    decoder = TransducerDecoder.of(offline.export, offline.joint)
    lengths = np.array([truth.encoded.shape[1] for truth in truths], np.int64)
    encoded = np.zeros((len(truths), truths[0].encoded.shape[0], lengths.max()), np.float32)
    for row, truth in enumerate(truths):
        encoded[row, :, : lengths[row]] = truth.encoded
    state, found = decoder.initial_state(len(truths)), [[] for _ in truths]
    for at in range(0, int(lengths.max()), 3):
        tokens, state = decoder.decode(encoded[:, :, at : at + 3], np.clip(lengths - at, 0, 3), state)
        for own, new in zip(found, tokens, strict=True):
            own.extend(new.ids.tolist())
    assert found == [truth.hypothesis.y_sequence.tolist() for truth in truths]


def test_token_times_are_nemos(offline, truths):
    durations = bool(offline.export.config.durations)
    for truth in truths:
        tokens = greedy(offline, truth.encoded)
        ends = tokens.frames + (tokens.durations if durations else 1)
        expected = truth.hypothesis.timestamp["char"]
        assert tokens.frames.tolist() == [char["start_offset"] for char in expected]
        assert ends.tolist() == [char["end_offset"] for char in expected]


def test_words_and_their_times_are_nemos(offline, truths):
    compared = 0
    for truth in truths:
        words = words_of(greedy(offline, truth.encoded), offline.export)
        expected = truth.hypothesis.timestamp["word"]
        assert text_of(words) == " ".join(truth.hypothesis.text.split())
        if [word.text for word in words] != [word["word"] for word in expected]:
            continue  # NeMo takes punctuation inside of words apart, which no real model writes
        frame_ms = offline.export.config.frame_ms
        for number, (word, nemos) in enumerate(zip(words, expected, strict=True)):
            assert word.start_ms == nemos["start_offset"] * frame_ms
            following = words[number + 1].start_ms if number + 1 < len(words) else word.end_ms
            end_ms = nemos["end_offset"] * frame_ms
            # A transducer without durations: words are not let overlap.
            assert word.end_ms in (end_ms, min(end_ms, following))
            compared += 1
    assert compared > 5


def test_confidences_are_nemos(offline, truths):
    for truth in truths:
        tokens = greedy(offline, truth.encoded)
        expected = [float(value) for value in truth.hypothesis.token_confidence]
        np.testing.assert_allclose(tokens.confidences, expected, atol=1e-4)


def test_word_confidence_is_the_mean_of_its_tokens_as_nemos_is(offline, truths):
    for truth in truths:
        words = words_of(greedy(offline, truth.encoded), offline.export)
        expected = [float(value) for value in truth.hypothesis.word_confidence]
        if len(words) == len(expected):
            np.testing.assert_allclose([word.confidence for word in words], expected, atol=2e-4)


@pytest.mark.parametrize("beam_size", [2, 4])
def test_the_beam_finds_what_nemos_finds_or_better(offline, truths, beam_size):
    strategy(
        offline.model,
        strategy="malsd_batch",
        beam={
            "beam_size": beam_size,
            "return_best_hypothesis": True,
            "score_norm": True,
            "max_symbols": 10,
            "allow_cuda_graphs": False,
        },
        confidence_cfg={"preserve_token_confidence": False, "preserve_word_confidence": False},
        compute_timestamps=False,
    )
    config = offline.export.config
    beam = BeamDecoder(
        offline.joint,
        blank=offline.export.blank,
        durations=config.durations,
        max_symbols=config.max_tokens_per_step,
        beam_size=beam_size,
        max_tail=1_000,
        synchronous=False,
    )
    for truth in truths:
        lengths = np.array([truth.encoded.shape[1]], np.int64)
        with torch.no_grad():
            (nemos,) = offline.model.decoding.rnnt_decoder_predictions_tensor(
                torch.tensor(truth.encoded[None]), torch.tensor(lengths), return_hypotheses=True
            )
        (reading,), _ = beam.decode(truth.encoded[None], lengths, beam.initial_state(1))
        ids = [int(token) for token in nemos.y_sequence]
        score = float(nemos.score) / (len(ids) + 1)
        if config.durations:
            assert reading.best.ids.tolist() == ids
            assert reading.nbest[0].score == pytest.approx(score, abs=1e-3)
        else:
            # Without durations ours finds more alignments of a reading than NeMo's does, or a reading
            # that is likelier.
            assert reading.nbest[0].score >= score - 1e-3


def test_onnx_asr_reads_the_export_as_the_serving_code_does(offline, clips):
    """An independent front end and decoder."""
    other = onnx_asr.load_model(offline.export.config.model_type, offline.export.folder)
    mel = LogMel(offline.export.config)
    for clip in clips:
        features = mel.normalized(mel.offline(clip))
        encoded, lengths = offline.encoder.encode(features[None], np.array([features.shape[1]], np.int64))
        words = words_of(greedy(offline, encoded[0, :, : lengths[0]]), offline.export)
        assert " ".join(other.recognize(clip).split()) == text_of(words)
