"""How a model's settings say to decode."""

from __future__ import annotations

from parley.serving.parameters import Parameters

BEAM_SIZE = 4


def beam_size(parameters: Parameters) -> int | None:
    """Hypotheses of the beam search (parameter ``beam_size``); None if ``decoding`` is ``greedy``.

    Raises:
        ModelLoadingError: a setting has a value that it cannot have.
    """
    if parameters.choice("decoding", "greedy", ("greedy", "beam")) == "greedy":
        return None
    return parameters.integer("beam_size", BEAM_SIZE, minimum=1, maximum=64)
