"""Reads words that no dictionary has: the network of ``g2p-en``, a GRU over letters and one over sounds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from parley.errors import ModelLoadingError
from parley.tts.english.sounds import PRIMARY, SECONDARY, is_flap_place, stressed

FILE = "checkpoint20.npz"
Array = NDArray[np.float32]

# As the network was trained: the first letter is number 3, the first sound number 4.
_UNKNOWN_LETTER, _LETTERS_END, _FIRST_LETTER = 1, 2, 3
_SOUNDS_START, _SOUNDS_END, _FIRST_SOUND = 2, 3, 4
_SOUNDS = (
    "AA0 AA1 AA2 AE0 AE1 AE2 AH0 AH1 AH2 AO0 AO1 AO2 AW0 AW1 AW2 AY0 AY1 AY2 B CH D DH EH0 EH1 EH2 ER0 ER1 "
    "ER2 EY0 EY1 EY2 F G HH IH0 IH1 IH2 IY0 IY1 IY2 JH K L M N NG OW0 OW1 OW2 OY0 OY1 OY2 P R S SH T TH UH0 "
    "UH1 UH2 UW UW0 UW1 UW2 V W Y Z ZH"
).split()
_PLAIN = "B D F K L M N P S T V W Z".split()
_CONSONANTS = {name: name.lower() for name in _PLAIN} | dict(
    zip("CH DH G HH JH NG R SH TH Y ZH".split(), "ʧðɡhʤŋɹʃθjʒ", strict=True)
)
_VOWELS = dict(
    zip(
        "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW".split(),
        "ɑ æ ʌ ɔ W I ɛ ɜɹ A ɪ i O Y ʊ u".split(),
        strict=True,
    )
)
_UNSTRESSED = {"AH": "ə", "ER": "əɹ"}
_STRESSES = {"1": PRIMARY, "2": SECONDARY}


@dataclass(frozen=True)
class _Gru:
    """One layer, with the gates in the order reset, update, new."""

    w_ih: Array
    w_hh: Array
    b_ih: Array
    b_hh: Array

    def step(self, given: Array, state: Array) -> Array:
        """The next state."""
        size = len(state)
        of_input = self.w_ih @ given + self.b_ih
        of_state = self.w_hh @ state + self.b_hh
        gates = 1 / (1 + np.exp(-(of_input[: 2 * size] + of_state[: 2 * size])))
        reset, update = gates[:size], gates[size:]
        new = np.tanh(of_input[2 * size :] + reset * of_state[2 * size :])
        return np.asarray((1 - update) * new + update * state, np.float32)


class LetterNetwork:
    """Predicts the sounds of a word from its letters a-z.

    Raises:
        ModelLoadingError: some of the arrays are missing, or do not fit together.
    """

    def __init__(self, arrays: dict[str, Array]) -> None:
        try:
            self._letters = arrays["enc_emb"]
            self._sounds = arrays["dec_emb"]
            self._reader, self._speaker = (
                _Gru(*(arrays[f"{name}_{part}"] for part in ("w_ih", "w_hh", "b_ih", "b_hh")))
                for name in ("enc", "dec")
            )
            self._weights, self._bias = arrays["fc_w"], arrays["fc_b"]
        except KeyError as error:
            raise ModelLoadingError(f"the network for unknown words is without {error}") from error
        if len(self._sounds) != _FIRST_SOUND + len(_SOUNDS) or len(self._letters) != _FIRST_LETTER + 26:
            raise ModelLoadingError("the network for unknown words has other letters or sounds")

    def read(self, word: str) -> str:
        """The most likely sounds of letters a-z; may be without a vowel, or empty."""
        state = np.zeros(self._reader.w_hh.shape[1], np.float32)
        for letter in word:
            known = "a" <= letter <= "z"
            number = ord(letter) - ord("a") + _FIRST_LETTER if known else _UNKNOWN_LETTER
            state = self._reader.step(self._letters[number], state)
        state = self._reader.step(self._letters[_LETTERS_END], state)
        number, names = _SOUNDS_START, []
        # No English word has more sounds than this; a network that has lost its way would not end.
        for _ in range(len(word) * 3 // 2 + 4):
            state = self._speaker.step(self._sounds[number], state)
            number = int(np.argmax(self._weights @ state + self._bias))
            if number == _SOUNDS_END:
                break
            if number >= _FIRST_SOUND:
                names.append(_SOUNDS[number - _FIRST_SOUND])
        return from_arpabet(names)


def load_network(folder: Path) -> LetterNetwork:
    """Read the network's weights; ModelLoadingError if they cannot be read."""
    path = folder / FILE
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: np.asarray(file[name], np.float32) for name in file.files}
    except (OSError, ValueError) as error:
        raise ModelLoadingError(f"{path} cannot be read: {error}") from error
    return LetterNetwork(arrays)


def from_arpabet(names: list[str]) -> str:
    """Sounds in the notation of the CMU dictionary (``["HH", "AH0", "L", "OW1"]``) in misaki's."""
    phonemes = ""
    for index, name in enumerate(names):
        if name in _CONSONANTS:
            following = names[index + 1] if index + 1 < len(names) else ""
            flap = name == "T" and following.endswith("0") and is_flap_place(phonemes[-1:])
            phonemes += "ɾ" if flap else _CONSONANTS[name]
        else:
            vowel, stress = name[:2], name[2:]
            sound = _VOWELS[vowel] if stress in _STRESSES else _UNSTRESSED.get(vowel, _VOWELS[vowel])
            phonemes += _STRESSES.get(stress, "") + sound
    return stressed(phonemes)
