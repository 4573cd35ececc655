"""A stream goes to the first recogniser that understands its language."""

import numpy as np
import pytest

from parley.asr.messages import AsrOptions, AsrReply, AsrRequest
from parley.engines.parakeet import ParakeetRecognizer
from parley.engines.recognizer_routing import RoutedRecognizer
from parley.errors import (
    InferenceError,
    InvalidMessageError,
    ModelUnavailableError,
    OverloadedError,
    TooManySessionsError,
    UnsupportedLanguageError,
)
from parley.inference import struct_tensor, tensor_struct


class Server:
    """Models by name, each with its languages; records the requests of each."""

    def __init__(self, **languages):
        self.languages = languages
        self.requests = []
        self.failures = {}

    async def infer(self, request):
        self.requests.append(request)
        if request.model in self.failures:
            raise self.failures[request.model]
        message = request.inputs.get("REQUEST")
        options = None if message is None else tensor_struct(message, AsrRequest).options
        known = self.languages[request.model]
        if options is not None and options.language and options.language not in known:
            raise UnsupportedLanguageError("not this one")
        return {"REPLY": struct_tensor(AsrReply(languages=list(known)), batched=True)}

    @property
    def asked(self):
        """Models and whether the request began a sequence and ended it."""
        return [(request.model, request.sequence.start, request.sequence.end) for request in self.requests]

    def recognizer(self):
        return RoutedRecognizer(
            [ParakeetRecognizer(self, "call-1", model=model, timeout_s=1.0) for model in self.languages]
        )


@pytest.fixture
def server():
    return Server(moonshine=("en",), whisper=("en", "es"), other=("es", "de"))


@pytest.mark.parametrize(("language", "model"), [("en", "moonshine"), ("es", "whisper"), ("de", "other")])
async def test_the_first_model_that_understands_the_language_has_the_whole_stream(server, language, model):
    recognizer = server.recognizer()
    options = AsrOptions(language=language)
    await recognizer.check(options)
    assert recognizer.model == model
    # Those that refused have no sequence left.
    assert all(start and end for _, start, end in server.asked)
    before = len(server.requests)
    await recognizer.start(options)
    await recognizer.push(np.zeros(4, np.int16))
    recognizer.begin_turn()
    await recognizer.flush()
    await recognizer.close()
    assert server.asked[before:] == [
        (model, True, False),
        (model, False, False),
        (model, False, False),
        (model, False, True),
    ]
    flush = tensor_struct(server.requests[-2].inputs["REQUEST"], AsrRequest)
    assert (flush.flush, flush.turn_over) == (True, True)


async def test_the_languages_are_those_of_all_models_that_answer(server):
    assert await server.recognizer().languages() == ["en", "es", "de"]
    assert all(start and end for _, start, end in server.asked)
    server.failures["other"] = InferenceError("down")
    assert await server.recognizer().languages() == ["en", "es"]
    server.failures |= dict.fromkeys(("moonshine", "whisper"), ModelUnavailableError("being loaded"))
    with pytest.raises(ModelUnavailableError):
        await server.recognizer().languages()


async def test_a_language_that_none_understands_is_refused_and_all_are_named(server):
    with pytest.raises(UnsupportedLanguageError) as caught:
        await server.recognizer().check(AsrOptions(language="fr"))
    assert caught.value.code == "unsupported_language"
    assert str(caught.value) == "language 'fr' is understood by none of moonshine, whisper, other"


@pytest.mark.parametrize(
    "refusal",
    [InvalidMessageError("too many phrases"), OverloadedError("busy"), TooManySessionsError("all are open")],
)
async def test_a_model_that_refuses_more_than_the_language_is_not_replaced(server, refusal):
    server.failures["whisper"] = refusal
    with pytest.raises(type(refusal)):
        await server.recognizer().check(AsrOptions(language="es"))
    assert {model for model, *_ in server.asked} == {"moonshine", "whisper"}


async def test_a_model_that_has_failed_does_not_stop_one_that_understands_the_language(server):
    server.failures["moonshine"] = ModelUnavailableError("moonshine is being loaded")
    recognizer = server.recognizer()
    await recognizer.check(AsrOptions(language="es"))
    assert recognizer.model == "whisper"
    # It may be the only one that understands this language.
    server.failures["other"] = InferenceError("down")
    with pytest.raises(ModelUnavailableError, match="being loaded"):
        await server.recognizer().check(AsrOptions(language="de"))
