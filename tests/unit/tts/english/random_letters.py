"""A network of random weights that reads words."""

from __future__ import annotations

import numpy as np

LETTERS, SOUNDS, SIZE = 29, 74, 12


def random_network(seed=3):
    random = np.random.default_rng(seed)

    def draw(*shape):
        return random.normal(0, 0.6, shape).astype(np.float32)

    arrays = {"enc_emb": draw(LETTERS, SIZE), "dec_emb": draw(SOUNDS, SIZE)}
    for name in ("enc", "dec"):
        arrays |= {f"{name}_{part}": draw(3 * SIZE, SIZE) for part in ("w_ih", "w_hh")}
        arrays |= {f"{name}_{part}": draw(3 * SIZE) for part in ("b_ih", "b_hh")}
    return arrays | {"fc_w": draw(SOUNDS, SIZE), "fc_b": draw(SOUNDS)}
