"""A network that answers without weights."""

import numpy as np


class FakeSession:
    """The state of a token is ``[id, place, 0 .. 0]``; records the ids of its runs.

    Attributes:
        gate: waited for in every run, where it is set.
        values: states that are returned in place of the computed ones, where they are set.
    """

    def __init__(self, size=4):
        self.size = size
        self.runs = []
        self.values = None
        self.gate = None
        self.began = None

    def run(self, _outputs, inputs):
        ids, lengths = inputs["ids"], inputs["lengths"]
        self.runs.append([row[:length].tolist() for row, length in zip(ids, lengths, strict=True)])
        if self.gate is not None:
            self.began.release()
            assert self.gate.wait(10)
        if self.values is not None:
            if isinstance(self.values, Exception):
                raise self.values
            return [np.full((ids.size, self.size), self.values, np.float32)]
        states = np.zeros((*ids.shape, self.size), np.float32)
        states[..., 0] = ids
        states[..., 1] = inputs["positions"]
        states[np.arange(ids.shape[1]) >= lengths[:, None]] = np.nan  # padding has no meaning
        return [states.reshape(ids.size, self.size)]
