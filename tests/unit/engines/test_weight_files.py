"""Which models lack files of their weights, as the launcher and the agent find out before they are loaded."""

from __future__ import annotations

import json
import re
import shutil
import struct

import pytest

from parley.embeddings import files as embeddings
from parley.engines.weight_files import check_weights, find_absent_weights
from parley.errors import ModelLoadingError, WeightsNotFoundError
from parley.launcher.options import ROOT
from parley.runtime.parameters import Parameters
from parley.runtime.repository import GPU_PROFILE, read_parameters
from parley.tts.hibari import voices as hibari
from parley.tts.kokoro import voices as kokoro
from parley.tts.piper import voices as piper

REPOSITORY = ROOT / "model_repository"
SHARED = {"misaki-en/us_gold.json", "misaki-en/us_silver.json", "g2p-en/checkpoint20.npz"}
MOONSHINE = {"encoder_model.ort", "decoder_model_merged.ort", "tokenizer.bin"}
WHISPER = {
    *("encoder_model.onnx", "decoder_model_merged.onnx", "tokenizer.json"),
    *("preprocessor_config.json", "generation_config.json"),
}
CHATTERBOX = {"chatterbox/t3_cfg.safetensors", "chatterbox/s3gen.safetensors", "chatterbox/ve.safetensors"}
SHERPA = {f"parakeet-ctc-110m/{name}" for name in ("model.onnx", "tokens.txt")}
NEEDED = {
    "embeddings": {f"all-minilm-l6-v2/{name}" for name in embeddings.FILES},
    "speaker_embedding": {"campplus-zh-en/campplus_cn_en_common.pt"},
    "kokoro": SHARED | {f"kokoro-82m/{name}" for name in kokoro.FILES},
    "hibari": SHARED | {f"hibari-heart/{name}" for name in hibari.FILES},
    "piper": SHARED | {f"piper-joe/{name}" for name in piper.FILES},
    "moonshine": {f"moonshine-tiny-en/{name}" for name in MOONSHINE},
    "moonshine_transcribe": {f"moonshine-tiny-en/{name}" for name in MOONSHINE},
    "whisper": {f"whisper-base/{name}" for name in WHISPER},
    "whisper_transcribe": {f"whisper-base/{name}" for name in WHISPER},
    "sherpa_onnx": SHERPA,
    "sherpa_onnx_transcribe": SHERPA,
    "chatterbox": {"chatterbox/t3_cfg.safetensors"},
    "t3": {"chatterbox/t3_cfg.safetensors", "chatterbox/tokenizer.json"},
    "s3gen": {"chatterbox/s3gen.safetensors"},
    "voice_enrollment": {"chatterbox/s3gen.safetensors", "chatterbox/ve.safetensors"},
}
COMMAND = {
    **dict.fromkeys(("chatterbox", "t3", "s3gen", "voice_enrollment"), "resemble/chatterbox"),
    "embeddings": "all-minilm-l6-v2",
    "speaker_embedding": "campplus-zh-en",
    "kokoro": "kokoro-82m",
    "hibari": "hibari-heart",
    "piper": "piper-joe",
    **dict.fromkeys(("moonshine", "moonshine_transcribe"), "moonshine-tiny-en"),
    **dict.fromkeys(("whisper", "whisper_transcribe"), "whisper-base"),
    **dict.fromkeys(("sherpa_onnx", "sherpa_onnx_transcribe"), "parakeet-ctc-110m"),
}


def t3_header():
    """What is read of a T3 file: the shapes of an English one of 64 numbers a token and a layer."""
    shapes = {
        "text_emb.weight": (704, 64),
        "speech_emb.weight": (8_194, 64),
        "tfmr.layers.0.mlp.up_proj.weight": (128, 64),
        "text_pos_emb.emb.weight": (2_050, 64),
        "speech_pos_emb.emb.weight": (4_100, 64),
    }
    raw = json.dumps({name: {"shape": shape} for name, shape in shapes.items()}).encode()
    return struct.pack("<Q", len(raw)) + raw


def write(models, files):
    for name in files:
        (models / name).parent.mkdir(parents=True, exist_ok=True)
        (models / name).write_bytes(t3_header() if "/t3_" in name else b"")


def settings(model, models, **environment):
    return read_parameters(REPOSITORY / model, GPU_PROFILE, {"PARLEY_MODELS_DIR": str(models), **environment})


@pytest.mark.parametrize("model", NEEDED)
def test_each_file_is_needed_and_named_with_its_command(tmp_path, model):
    write(tmp_path, NEEDED[model])
    check_weights(settings(model, tmp_path))
    for name in NEEDED[model]:
        folder, _, file = name.partition("/")
        (tmp_path / name).rename(tmp_path / "aside")
        with pytest.raises(WeightsNotFoundError) as caught:
            check_weights(settings(model, tmp_path))
        said = str(caught.value)
        assert f"{tmp_path / folder} is without " in said
        assert file in said or ("t3_*" in said and file.startswith("t3_"))
        command = COMMAND[model] if name not in SHARED else folder
        assert f"make fetch MODEL={command}`" in said
        (tmp_path / "aside").rename(tmp_path / name)


def test_every_optional_model_is_covered():
    optional = {
        folder.name
        for folder in REPOSITORY.iterdir()
        if (found := read_parameters(folder, GPU_PROFILE, {})) and found.text("optional", "") == "true"
    }
    assert optional == NEEDED.keys() | {"nemotron_streaming"}


def test_a_recogniser_needs_what_its_description_names(tmp_path):
    write(tmp_path, {f"whisper-base/{name}" for name in WHISPER - {"encoder_model.onnx"}})
    folder = tmp_path / "whisper-base"
    (folder / "recognizer.json").write_text('{"family": "whisper", "encoder": "onnx/encoder.onnx"}')
    with pytest.raises(WeightsNotFoundError, match=r"is without onnx/encoder\.onnx; download"):
        check_weights(settings("whisper", tmp_path))
    write(folder, {"onnx/encoder.onnx"})
    check_weights(settings("whisper", tmp_path))
    (folder / "recognizer.json").write_text("{")
    with pytest.raises(ModelLoadingError, match="cannot be read"):
        check_weights(settings("whisper", tmp_path))


def test_folder_of_another_family_without_a_description_is_refused(tmp_path):
    mine = tmp_path / "my-zipformer"
    write(mine, {"encoder.onnx", "decoder.onnx", "joiner.onnx", "tokens.txt"})
    environment = {"PARLEY_WEIGHTS_SHERPA_ONNX": str(mine)}
    with pytest.raises(WeightsNotFoundError) as caught:
        check_weights(settings("sherpa_onnx", tmp_path, **environment))
    said = str(caught.value)
    assert f"{mine} is without recognizer.json, model.onnx; write recognizer.json into it" in said
    assert '{"family": "zipformer"}' in said
    assert "docs/recognition.md#a-folder-of-your-own" in said
    assert said.endswith("or correct PARLEY_WEIGHTS_SHERPA_ONNX, which names it")
    (mine / "recognizer.json").write_text('{"family": "zipformer"}')
    check_weights(settings("sherpa_onnx", tmp_path, **environment))


@pytest.mark.parametrize(("engine", "needed"), [
    ("onnx", {"config.json", "vocab.txt", "decoder_joint-model.onnx", "encoder-r1.onnx", "encoder-r6.onnx"}),
    ("torch", {"config.json", "vocab.txt", "model.safetensors"}),
])  # fmt: skip
def test_a_streaming_recogniser_needs_the_look_aheads_that_it_offers(tmp_path, engine, needed):
    folder = tmp_path / "streaming"
    write(folder, needed)
    shutil.copy(ROOT / "models/tiny-nemotron-streaming/config.json", folder)
    shutil.copy(ROOT / "models/tiny-nemotron-streaming/vocab.txt", folder)
    values = {"weights": "streaming", "engine": engine, "lookaheads_ms": "160,560"}
    parameters = Parameters("nemotron_streaming", values, environment={"PARLEY_MODELS_DIR": str(tmp_path)})
    check_weights(parameters)
    for name in needed:
        (folder / name).rename(tmp_path / "aside")
        with pytest.raises(WeightsNotFoundError, match=re.escape(name)):
            check_weights(parameters)
        (tmp_path / "aside").rename(folder / name)


def test_the_t3_file_may_be_named(tmp_path):
    write(
        tmp_path, {"chatterbox/t3_a.safetensors", "chatterbox/t3_b.safetensors", "chatterbox/tokenizer.json"}
    )
    check_weights(settings("t3", tmp_path, PARLEY_T3_CHECKPOINT="t3_b.safetensors"))
    with pytest.raises(WeightsNotFoundError, match=r"without t3_c\.safetensors"):
        check_weights(settings("t3", tmp_path, PARLEY_T3_CHECKPOINT="t3_c.safetensors"))


def test_agent_finds_incomplete_weights_and_leaves_other_faults_to_models(tmp_path):
    write(tmp_path, NEEDED["kokoro"] - {"kokoro-82m/voices/ef_dora.bin"} | NEEDED["piper"])
    write(tmp_path, NEEDED["t3"])
    (tmp_path / "chatterbox/t3_cfg.safetensors").write_bytes(b"")
    environment = {"PARLEY_MODELS_DIR": str(tmp_path)}
    absent = find_absent_weights(REPOSITORY, GPU_PROFILE, ["kokoro", "piper", "t3", "espeak"], environment)
    assert absent.keys() == {"kokoro"}
    assert "is without voices/ef_dora.bin" in absent["kokoro"]
