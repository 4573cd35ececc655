"""``build/export.py qwen`` on a small model written as GGUF."""

import json
import re
import unicodedata

import numpy as np
import pytest

pytest.importorskip("gguf")
import torch
from safetensors.torch import load_file, save_file
from small_gguf import HIDDEN, byte_level, make_vocabulary, write_gguf
from tokenizers import Tokenizer

from export import main
from qwen_gguf import vocabulary
from qwen_gguf.conversion import NOTE

TEXTS = (
    "Book a table for two at 7:30, please.",
    "naïve café — £4.50",
    "Größe und Straße, Schlüssel",
    'def f(x):\n    return {"a": [1, 2]}\t# ok\r\n',
    "你好，世界！今天天气怎么样？ 日本",  # noqa: RUF001 - as it is written
    "😀👩‍👩‍👧‍👦🇩🇪",
    "Привет عربى",
    "\x00\x01 e\u0301",
)


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "published"
    folder.mkdir()
    return folder / "small-q8_0.gguf"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "models" / "small"


def run(source, target, *options):
    return main(["qwen", str(source), str(target), *options])


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_folder_has_what_vllm_loads(source, target):
    values = write_gguf(source)
    assert run(source.parent, target) == 0
    config, tensors = read(target / "config.json"), load_file(target / "model.safetensors")
    assert {path.name for path in target.iterdir()} == {
        NOTE,
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert tensors["model.embed_tokens.weight"].shape == (config["vocab_size"], HIDDEN)
    assert tensors["lm_head.weight"].dtype == torch.int8
    assert config["vocab_size"] % vocabulary.ROWS == 0
    for ours, theirs in (
        ("model.layers.1.mlp.down_proj", "blk.1.ffn_down.weight"),
        ("model.layers.0.self_attn.k_proj", "blk.0.attn_k.weight"),
    ):
        scaled = tensors[f"{ours}.weight"].float() * tensors[f"{ours}.weight_scale"]
        np.testing.assert_allclose(scaled.numpy(), values[theirs], atol=0.05)
    np.testing.assert_allclose(
        tensors["model.layers.1.self_attn.v_proj.bias"].float().numpy(),
        values["blk.1.attn_v.bias"],
        rtol=0.01,
        atol=0.01,
    )


def test_each_kept_token_has_its_own_rows_and_marks_their_new_ids(source, target):
    values = write_gguf(source)
    assert run(source, target) == 0
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    tensors = load_file(target / "model.safetensors")
    old = {token: index for index, token in enumerate(make_vocabulary()[0])}
    old |= {"<|endoftext|>": len(old), "<|im_start|>": len(old) + 1, "<|im_end|>": len(old) + 2}
    new = tokenizer.get_vocab()
    assert sorted(new.values()) == list(range(read(target / "config.json")["vocab_size"]))
    for token, index in new.items():
        row = tensors["model.embed_tokens.weight"][index].float().numpy()
        np.testing.assert_allclose(row, values["token_embd.weight"][old[token]], atol=0.05)
    config, generation = read(target / "config.json"), read(target / "generation_config.json")
    assert config["eos_token_id"] == new["<|im_end|>"]
    assert generation["eos_token_id"] == [new["<|im_end|>"], new["<|endoftext|>"]]
    assert "<|image|>" not in new


@pytest.mark.parametrize("chosen", ["english", "whole"])
def test_every_text_can_be_read_and_written(source, target, chosen):
    write_gguf(source)
    assert run(source, target, "--vocabulary", chosen) == 0
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    for text in (*TEXTS, *map(chr, range(0x20, 0x3000, 7))):
        ids = tokenizer.encode(text).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == unicodedata.normalize("NFC", text)


def test_text_of_kept_tokens_is_split_as_before(source, target, tmp_path):
    write_gguf(source)
    assert run(source, target) == 0
    assert run(source, tmp_path / "whole", "--vocabulary", "whole") == 0
    short, whole = (
        Tokenizer.from_file(str(folder / "tokenizer.json")) for folder in (target, tmp_path / "whole")
    )
    known = short.get_vocab()
    compared = 0
    for text in (*TEXTS, "the tables, the café", "defining getElementById"):
        expected = whole.encode(text).tokens
        if set(expected) <= known.keys():
            compared += 1
            assert short.encode(text).tokens == expected
    assert compared >= 3


def test_english_is_kept_and_other_languages_are_not():
    kept = set(map(byte_level, (" the", "ing", "They", " café", '":', "_name", "\n\n", " 7")))
    dropped = set(map(byte_level, ("日本", " Привет", "getElementById", ".append(")))
    assert all(vocabulary._is_english(token, 1_000) for token in kept)
    assert not any(vocabulary._is_english(token, 1_000) for token in dropped)
    assert not vocabulary._is_english("ihtiy", 120_000)


def test_a_tied_head_is_the_embedding(source, target):
    values = write_gguf(source, tied=True)
    assert run(source, target, "--vocabulary", "whole") == 0
    tensors = load_file(target / "model.safetensors")
    head = tensors["lm_head.weight"].float() * tensors["lm_head.weight_scale"]
    np.testing.assert_allclose(head[:50].numpy(), values["token_embd.weight"][:50], atol=0.05)
    assert read(target / "config.json")["tie_word_embeddings"] is False


def test_second_conversion_does_nothing(source, target, capsys):
    write_gguf(source)
    assert run(source, target) == 0
    made = (target / "model.safetensors").stat().st_mtime_ns
    assert run(source, target) == 0
    assert (target / "model.safetensors").stat().st_mtime_ns == made
    assert "is there already" in capsys.readouterr().err


ADAPTED = "base_model.model.model.layers.1.self_attn.q_proj"


def write_adapter(folder, *, name=ADAPTED, width=HIDDEN, value=0.5, **config):
    folder.mkdir(exist_ok=True)
    factors = {
        f"{name}.lora_A.weight": torch.full((2, width), value),
        f"{name}.lora_B.weight": torch.arange(2.0 * HIDDEN).reshape(HIDDEN, 2),
    }
    save_file(factors, folder / "adapter_model.safetensors")
    described = {"peft_type": "LORA", "r": 2, "lora_alpha": 8} | config
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder


def test_an_adapter_is_added_before_rounding(source, target, tmp_path):
    values = write_gguf(source)
    adapter = write_adapter(tmp_path / "adapter")
    assert run(source, target, "--adapter", str(adapter)) == 0
    tensors = load_file(target / "model.safetensors")
    scaled = tensors["model.layers.1.self_attn.q_proj.weight"].float()
    scaled *= tensors["model.layers.1.self_attn.q_proj.weight_scale"]
    added = 4 * 0.5 * (torch.arange(2.0 * HIDDEN).reshape(HIDDEN, 2).sum(1, keepdim=True))
    # A row is rounded to 127 steps of its largest value.
    expected = torch.from_numpy(values["blk.1.attn_q.weight"]) + added
    assert bool(((scaled - expected).abs() <= 0.05 + expected.abs().amax(1, keepdim=True) / 127).all())
    other = tensors["model.layers.0.self_attn.q_proj.weight"].float()
    other *= tensors["model.layers.0.self_attn.q_proj.weight_scale"]
    np.testing.assert_allclose(other.numpy(), values["blk.0.attn_q.weight"], atol=0.05)


def test_another_adapter_makes_the_folder_anew(source, target, tmp_path, capsys):
    write_gguf(source)
    assert run(source, target, "--adapter", str(write_adapter(tmp_path / "adapter"))) == 0
    first = read(target / NOTE)["adapter"]
    assert run(source, target, "--adapter", str(tmp_path / "adapter")) == 0
    assert "is there already" in capsys.readouterr().err
    assert run(source, target, "--adapter", str(write_adapter(tmp_path / "adapter", value=0.25))) == 0
    assert read(target / NOTE)["adapter"] != first
    assert run(source, target) == 0
    assert read(target / NOTE)["adapter"] == {}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "base_model.model.model.layers.7.self_attn.q_proj"}, "is of another model"),
        ({"width": HIDDEN + 1}, "does not fit"),
        ({"value": float("nan")}, "values that are no numbers"),
        ({"r": 0}, "is not an adapter"),
        ({"peft_type": "IA3"}, "cannot be merged: IA3"),
        ({"use_dora": True}, "cannot be merged"),
        (None, "is not an adapter"),
    ],
)
def test_an_adapter_that_cannot_be_merged_is_refused(source, target, fields, said, capsys):
    write_gguf(source)
    folder = target.parent.parent / "adapter"
    adapter = folder if fields is None else write_adapter(folder, **fields)
    assert run(source, target, "--adapter", str(adapter)) == 1
    assert said in capsys.readouterr().err
    assert not target.exists()


def spoil_file(source, target):
    (target / "config.json").write_text("{}")


def drop_file(source, target):
    (target / "tokenizer.json").unlink()


def another_version(source, target):
    note = read(target / NOTE)
    (target / NOTE).write_text(json.dumps(note | {"converter": 0}))


def another_source(source, target):
    source.unlink()
    write_gguf(source, tied=True)


def broken_note(source, target):
    (target / NOTE).write_text("[1]")


@pytest.mark.parametrize("change", [spoil_file, drop_file, another_version, another_source, broken_note])
def test_stale_or_damaged_file_is_made_again(source, target, change, capsys):
    write_gguf(source)
    assert run(source, target) == 0
    change(source, target)
    assert run(source, target) == 0
    assert "is complete" in capsys.readouterr().err.splitlines()[-1]
    assert read(target / "config.json")["hidden_size"] == HIDDEN
    assert [path.name for path in target.parent.iterdir()] == [target.name]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"architecture": "llama"}, "architecture 'llama'"),
        ({"pre": "llama-bpe"}, "tokenizer"),
        ({"without": "blk.1.ffn_up.weight"}, "no tensor blk.1.ffn_up.weight"),
        ({"without": "<|im_end|>"}, "it is no chat model"),
        ({"spoil": "output.weight"}, "values that are no numbers"),
    ],
)
def test_failed_conversion_is_reported_and_keeps_the_old_file(source, target, fields, said, capsys):
    write_gguf(source)
    assert run(source, target) == 0
    kept = (target / NOTE).read_bytes()
    source.unlink()
    write_gguf(source, **fields)
    assert run(source, target) == 1
    assert re.search(f"error: .*{re.escape(said)}", capsys.readouterr().err)
    assert (target / NOTE).read_bytes() == kept
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_a_file_that_is_cut_off_is_refused(source, target, capsys):
    write_gguf(source)
    content = source.read_bytes()
    source.write_bytes(content[: len(content) * 2 // 3])
    assert run(source, target) == 1
    assert "not all of one" in capsys.readouterr().err
    source.write_bytes(b"PK\x03\x04" * 100)
    assert run(source, target) == 1
    assert not target.exists()


def test_the_file_must_be_clear(source, target, tmp_path, capsys):
    assert run(tmp_path, target) == 1
    assert "0 GGUF files" in capsys.readouterr().err
    assert run(source, target) == 1
    assert "there is no file" in capsys.readouterr().err
