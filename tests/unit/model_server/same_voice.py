"""What the ensemble for voices makes, compared with what is stored of the same recording."""

import numpy as np

TOLERANCES = {"rtol": 1e-3, "atol": 1e-4}
"""The networks run in another process with other threads, where sums have another order."""


def assert_same_voice(made, voice):
    """Compare tensors of the model ``voice_conditionals``, by name, with a stored voice."""
    np.testing.assert_array_equal(made["T3_PROMPT_TOKENS"], voice.t3_prompt_tokens)
    np.testing.assert_array_equal(made["PROMPT_TOKENS"], voice.prompt_tokens)
    for name, stored in (
        ("SPEAKER_EMBEDDING", voice.speaker_embedding),
        ("SPEAKER", voice.speaker),
        ("PROMPT_MEL", voice.prompt_mel),
    ):
        assert made[name].dtype == np.float32
        np.testing.assert_allclose(made[name], stored, **TOLERANCES)
