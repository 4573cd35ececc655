"""Checkpoints, prompts, texts, and the settings in a prompt's ids."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from chatterbox_export.small_t3 import write_small_t3
from parley.errors import InvalidMessageError, ModelLoadingError, UnsupportedLanguageError
from parley_torch.tts.t3.checkpoint import engine_folder, find_checkpoint, read_shape
from parley_torch.tts.t3.prompt import PromptEncoder
from parley_torch.tts.t3.request import (
    CONTEXT_BITS,
    PROMPT_BITS,
    PackedSettings,
    TokenVoice,
    prompt_ids,
    read_prompt_ids,
)
from parley_torch.tts.t3.text import load_reader, tidy

NEUTRAL = {"exaggeration": 0.5, "guidance_weight": 0.5}


def voice(seed=0, tokens=10):
    noise = np.random.default_rng(seed)
    return TokenVoice(noise.standard_normal(256, np.float32), noise.integers(0, 6561, tokens, np.int32))


class TestPackedSettings:
    @given(
        length=st.integers(2, 2047), hundredths=st.integers(0, 127), generated=st.lists(st.integers(0, 8193))
    )
    def test_settings_come_through(self, length, hundredths, generated):
        ids = prompt_ids(length, hundredths / 100, 8194)
        assert len(ids) == length
        settings = read_prompt_ids([*ids, *generated], 8194)
        assert settings == PackedSettings(length, hundredths)
        packed = settings.offset() + (1 << CONTEXT_BITS) - 1  # the last position
        assert packed < 2**31
        assert packed & ((1 << CONTEXT_BITS) - 1) == (1 << CONTEXT_BITS) - 1
        assert packed >> CONTEXT_BITS & ((1 << PROMPT_BITS) - 1) == length
        assert packed >> CONTEXT_BITS + PROMPT_BITS == hundredths

    @pytest.mark.parametrize(("length", "weight"), [(1, 0.5), (2048, 0.5), (5, -0.1), (5, 1.28)])
    def test_values_that_cannot_be_encoded_are_refused(self, length, weight):
        with pytest.raises(ValueError, match="cannot be encoded"):
            prompt_ids(length, weight, 8194)

    def test_other_ids_are_refused(self):
        with pytest.raises(ValueError, match="hold no settings"):
            read_prompt_ids([0, 0, 6561], 8194)


class TestCheckpoint:
    @pytest.mark.parametrize(
        ("variant", "guided", "speech"),
        [("original", True, 8194), ("multilingual", True, 8194), ("turbo", False, 6563)],
    )
    def test_sizes_are_read_off_the_file(self, checkpoints, variant, guided, speech):
        _, shape = checkpoints(variant)
        assert (shape.variant, shape.guided, shape.speech_vocabulary) == (variant, guided, speech)
        assert (shape.width, shape.heads, shape.layers) == (128, 2, 1)

    def test_the_generator_is_seeded(self, checkpoints, tmp_path):
        path, _ = checkpoints("original")
        again = load_file(find_checkpoint(write_small_t3(tmp_path / "a", layers=1)))
        other = load_file(find_checkpoint(write_small_t3(tmp_path / "b", layers=1, seed=1)))
        name = "tfmr.layers.0.mlp.up_proj.weight"
        assert torch.equal(load_file(path)[name], again[name])
        assert not torch.equal(again[name], other[name])

    def test_the_file_must_be_clear(self, checkpoints, tmp_path):
        with pytest.raises(ModelLoadingError, match="it has none"):
            find_checkpoint(tmp_path)
        for name in ("t3_a.safetensors", "t3_b.safetensors"):
            (tmp_path / name).touch()
        with pytest.raises(ModelLoadingError, match=r"t3_a\.safetensors, t3_b\.safetensors"):
            find_checkpoint(tmp_path)
        assert find_checkpoint(tmp_path, "t3_b.safetensors").name == "t3_b.safetensors"
        with pytest.raises(ModelLoadingError, match="does not exist"):
            find_checkpoint(tmp_path, "t3_c.safetensors")

    @pytest.mark.parametrize(
        "content", [b"", b"garbage!" * 4, b"\x02\0\0\0\0\0\0\0{}", b"\x02\0\0\0\0\0\0\0[]"]
    )
    def test_other_files_are_refused(self, tmp_path, content):
        path = tmp_path / "t3_cfg.safetensors"
        path.write_bytes(content)
        with pytest.raises(ModelLoadingError, match="not a T3 checkpoint"):
            read_shape(path)

    def test_a_tensor_that_is_missing_is_named(self, checkpoints, tmp_path):
        path, shape = checkpoints("original")
        state = load_file(path)
        del state["cond_enc.spkr_enc.bias"]
        save_file(state, tmp_path / "t3_cfg.safetensors")
        with pytest.raises(ModelLoadingError, match=r"spkr_enc\.bias"):
            PromptEncoder.load(tmp_path / "t3_cfg.safetensors", shape)

    def test_the_engines_folder_is_the_same_at_every_start(self, checkpoints, tmp_path):
        path, shape = checkpoints("original")
        folder = engine_folder(path, shape, tmp_path)
        assert engine_folder(path, shape, tmp_path) == folder
        assert sorted(entry.name for entry in folder.iterdir()) == ["config.json", "model.safetensors"]
        assert (folder / "model.safetensors").resolve() == path.resolve()
        assert json.loads((folder / "config.json").read_text())["hidden_size"] == 256
        assert engine_folder(path, replace(shape, layers=9), tmp_path) != folder


class TestPrompt:
    @pytest.fixture
    def encoder(self, checkpoints):
        return PromptEncoder.load(*checkpoints("original"))

    def test_both_halves_differ_in_the_text_alone(self, encoder):
        prompt = encoder.encode(voice(), [255, 5, 6, 0], exaggeration=0.5, guidance_weight=0.24)
        conditional, unconditional = prompt.embeddings.split(128, -1)
        assert prompt.embeddings.shape == (34 + 4 + 2, 256)
        same = (conditional == unconditional).all(-1)
        assert same.tolist() == [*[True] * 34, *[False] * 4, True, True]
        assert torch.equal(unconditional[34:38], encoder.text_pos_emb.emb.weight[:4])
        assert prompt.ids == [*[8194 + 24] * 39, 6561]

    def test_emotion_is_one_row(self, encoder):
        calm, lively = (
            encoder.encode(voice(), [255, 0], exaggeration=value, guidance_weight=0.5).embeddings
            for value in (0.3, 0.9)
        )
        assert (calm != lively).any(-1).nonzero().flatten().tolist() == [33]

    def test_a_voice_is_computed_once_and_a_bounded_number_is_held(self, encoder, monkeypatch):
        computed = []
        original = encoder.cond_enc.voice
        monkeypatch.setattr(encoder.cond_enc, "voice", lambda *rows: computed.append(1) or original(*rows))
        first = encoder.encode(voice(), [255, 0], **NEUTRAL)
        again = encoder.encode(voice(), [255, 0], **NEUTRAL)
        assert torch.equal(first.embeddings, again.embeddings)
        assert len(computed) == 1
        for seed in range(1, 70):
            encoder.encode(voice(seed), [255, 0], **NEUTRAL)
        assert len(encoder._voices) == 64
        encoder.encode(voice(), [255, 0], **NEUTRAL)
        assert len(computed) == 71

    def test_long_reference_speech_is_cut(self, encoder):
        long = voice(tokens=400)
        cut = TokenVoice(long.speaker_embedding, long.prompt_tokens[:150])
        rows = [
            encoder.encode(one, [255, 0], exaggeration=0.5, guidance_weight=0).embeddings
            for one in (long, cut)
        ]
        assert torch.equal(*rows)

    def test_turbo_takes_the_speech_as_it_is(self, checkpoints):
        encoder = PromptEncoder.load(*checkpoints("turbo"))
        prompt = encoder.encode(voice(tokens=7), [5, 6], **NEUTRAL)
        assert prompt.embeddings.shape == (1 + 7 + 2 + 1, 128)
        assert prompt.ids == [*[6563] * 10, 6561]


class TestText:
    def test_tidy(self):
        assert tidy("  hello   there", turbo=False) == "Hello there."
        assert tidy("Wait... what; no", turbo=False) == "Wait,  what,  no."
        assert tidy("Wait... what; no", turbo=True) == "Wait... what; no."
        with pytest.raises(InvalidMessageError):
            tidy(" \n", turbo=False)

    def test_original(self, checkpoints):
        path, shape = checkpoints("original")
        reader = load_reader(path.parent, shape)
        ids = reader.read("a b", "en")
        assert (ids[0], ids[-1], ids.count(2)) == (255, 0, 1)
        with pytest.raises(UnsupportedLanguageError, match="'de'"):
            reader.read("a", "de")

    def test_multilingual_names_its_language(self, checkpoints):
        path, shape = checkpoints("multilingual")
        reader = load_reader(path.parent, shape)
        english, german = reader.read("ab", "en"), reader.read("ab", "de")
        assert english[1] != german[1]
        assert english[2:] == german[2:]
        assert reader.read("각", "ko") != reader.read("가", "ko")
        with pytest.raises(UnsupportedLanguageError, match="must be rewritten"):
            reader.read("a", "ja")

    def test_turbo_has_tags_and_no_marks(self, checkpoints):
        path, shape = checkpoints("turbo")
        reader = load_reader(path.parent, shape)
        plain, tagged = reader.read("ab.", "en"), reader.read("ab. [laugh]", "en")
        assert len(plain) == 3
        assert len(tagged) == len(plain) + 3

    def test_a_missing_tokenizer_is_named(self, checkpoints, tmp_path):
        _, shape = checkpoints("original")
        with pytest.raises(ModelLoadingError, match="tokenizer"):
            load_reader(tmp_path, shape)
