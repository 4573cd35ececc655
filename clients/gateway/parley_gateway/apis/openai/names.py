"""Names of models and voices: Parley's own, and those that clients of OpenAI bring along."""

from __future__ import annotations

import re
from collections.abc import Sequence

from parley_client.stages.lineup import SPEAKERS
from parley_client.transcription import TRANSCRIBERS
from parley_gateway.apis.openai.errors import RefusedRequestError

RECOGNIZERS = (*TRANSCRIBERS, "parakeet_tdt", "nemotron_streaming", "moonshine")
LANGUAGE_MODELS = ("qwen3",)
SYNTHESIZERS = tuple(SPEAKERS)
MODELS = (*RECOGNIZERS, *LANGUAGE_MODELS, *SYNTHESIZERS)

# Clients that are switched over by their address alone name these; they get the gateway's model.
_OPENAI_MODEL = re.compile(r"(gpt|chatgpt|whisper|tts|o\d)(-|$)")


def choose_model(wanted: str, own: Sequence[str], default: str) -> str:
    """The model that a client means.

    Args:
        wanted: its name for it.
        own: the models that can do what is wanted.
        default: the one for the names of OpenAI's models.

    Raises:
        RefusedRequestError: there is no such model, or it cannot do this.
    """
    if wanted in own:
        return wanted
    if wanted not in MODELS and _OPENAI_MODEL.match(wanted):
        return default
    raise no_model(wanted, own)


def no_model(wanted: str, own: Sequence[str] = MODELS) -> RefusedRequestError:
    """The answer to a name that is no model's."""
    return RefusedRequestError(
        f"The model '{wanted}' does not exist or cannot do this; there are {', '.join(own)}",
        param="model",
        reason="model_not_found",
        status=404,
    )
