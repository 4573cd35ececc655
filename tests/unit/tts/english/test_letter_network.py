"""The network that reads words which no dictionary has."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from parley.errors import ModelLoadingError
from parley.tts.english.network import LetterNetwork, from_arpabet, load_network


def reference(arrays, word):
    """The numbers of the sounds of a word, by PyTorch's GRU."""
    size = arrays["enc_w_hh"].shape[1]
    layers = {}
    for name in ("enc", "dec"):
        layers[name] = torch.nn.GRUCell(size, size)
        layers[name].load_state_dict(
            {
                f"{kind}_{of}": torch.from_numpy(arrays[f"{name}_{kind[0]}_{of}"])
                for kind in ("weight", "bias")
                for of in ("ih", "hh")
            }
        )
    numbers, state = [], torch.zeros(1, size)
    with torch.no_grad():
        for letter in [*(ord(letter) - ord("a") + 3 for letter in word), 2]:
            state = layers["enc"](torch.from_numpy(arrays["enc_emb"][letter])[None], state)
        number = 2
        for _ in range(len(word) * 3 // 2 + 4):
            state = layers["dec"](torch.from_numpy(arrays["dec_emb"][number])[None], state)
            logits = state[0].numpy() @ arrays["fc_w"].T + arrays["fc_b"]
            number = int(logits.argmax())
            if number == 3:
                break
            numbers.append(number)
    return numbers


@pytest.mark.parametrize("word", ["xiaoping", "a", "zbigniew", "ngozi"])
def test_letter_network_equals_pytorch(arrays, word, monkeypatch):
    seen = []
    monkeypatch.setattr("parley.tts.english.network.from_arpabet", lambda names: seen.extend(names) or "")
    LetterNetwork(arrays).read(word)
    from parley.tts.english.network import _SOUNDS

    assert seen == [_SOUNDS[number - 4] for number in reference(arrays, word) if number >= 4]


def test_a_network_that_does_not_end_is_ended(arrays):
    endless = {**arrays, "fc_b": np.where(np.arange(74) == 4, 1e3, 0).astype(np.float32)}
    assert len(LetterNetwork(endless).read("abc")) <= 2 * (3 * 3 // 2 + 4)


@pytest.mark.parametrize(
    ("sounds", "phonemes"),
    [
        ("HH AH0 L OW1", "həlˈO"),
        ("W AO1 T ER0", "wˈɔɾəɹ"),
        ("AH0 T AE1 K", "ətˈæk"),
        ("JH AH1 JH", "ʤˈʌʤ"),
        ("B ER1 D", "bˈɜɹd"),
        ("B IY0 T", "bˈit"),  # some syllable bears the stress
        ("K AE1 T AE1 K", "kˈætˌæk"),  # only one does
        ("S T", "st"),
        ("", ""),
    ],
)
def test_sounds_are_written_as_misaki_does(sounds, phonemes):
    assert from_arpabet(sounds.split()) == phonemes


def test_what_is_missing_is_named(arrays, tmp_path):
    with pytest.raises(ModelLoadingError, match="dec_w_hh"):
        LetterNetwork({name: array for name, array in arrays.items() if name != "dec_w_hh"})
    with pytest.raises(ModelLoadingError, match="other letters or sounds"):
        LetterNetwork({**arrays, "enc_emb": arrays["enc_emb"][:5]})
    with pytest.raises(ModelLoadingError, match="checkpoint20"):
        load_network(tmp_path)
    np.savez(tmp_path / "checkpoint20.npz", **arrays)
    assert load_network(tmp_path).read("abc") == LetterNetwork(arrays).read("abc")
