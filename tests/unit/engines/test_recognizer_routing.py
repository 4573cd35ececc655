"""A stream goes to the first recogniser that understands its language."""

import asyncio

import numpy as np
import pytest

from parley.asr.messages import AsrOptions, AsrReply, AsrRequest
from parley.engines.recognizers import ModelRecognizer, RoutedRecognizer
from parley.errors import (
    DeadlineExceededError,
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
        self.hanging = set()
        self.start_hanging = set()

    async def infer(self, request):
        self.requests.append(request)
        begins = request.sequence.start and not request.sequence.end
        if request.model in self.hanging or (begins and request.model in self.start_hanging):
            await asyncio.Event().wait()
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

    def recognizer(self, *, first="", last="", limit_s=30.0):
        return RoutedRecognizer(
            [ModelRecognizer(self, "call-1", model=model, timeout_s=1.0) for model in self.languages],
            limit_s=limit_s,
            first=first,
            last=last,
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
    recognizer = server.recognizer()
    assert await recognizer.languages() == ["en", "es"]
    assert recognizer.unavailable == ("other",)
    server.failures.clear()
    assert await recognizer.languages() == ["en", "es", "de"]
    assert recognizer.unavailable == ()
    server.failures |= dict.fromkeys(("moonshine", "whisper", "other"), ModelUnavailableError("being loaded"))
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


async def test_failed_model_does_not_stop_another_with_the_language(server):
    server.failures["moonshine"] = ModelUnavailableError("moonshine is being loaded")
    recognizer = server.recognizer()
    await recognizer.check(AsrOptions(language="es"))
    assert recognizer.model == "whisper"
    # It may be the only one that understands this language.
    server.failures["other"] = InferenceError("down")
    with pytest.raises(ModelUnavailableError, match="being loaded"):
        await server.recognizer().check(AsrOptions(language="de"))


async def test_a_model_that_hangs_leaves_the_next_ones_their_time(server):
    server.hanging = {"moonshine"}
    recognizer = server.recognizer(limit_s=0.3)
    async with asyncio.timeout(10):
        await recognizer.check(AsrOptions())
        assert recognizer.model == "whisper"
        assert await recognizer.languages() == ["en", "es", "de"]


async def test_hanging_models_raise_the_first_failure(server):
    server.hanging = {"moonshine", "whisper", "other"}
    async with asyncio.timeout(10):
        with pytest.raises(DeadlineExceededError, match="moonshine"):
            await server.recognizer(limit_s=0.3).check(AsrOptions())
    assert [model for model, *_ in server.asked] == ["moonshine", "whisper", "other"]


async def test_the_model_that_has_accepted_the_options_is_asked_first(server):
    recognizer = server.recognizer(first="whisper")
    await recognizer.check(AsrOptions())
    assert recognizer.model == "whisper"
    assert [model for model, *_ in server.asked] == ["whisper"]


async def test_a_start_that_hangs_leaves_the_next_models_their_time_and_is_ended(server):
    server.start_hanging = {"moonshine"}
    recognizer, options = server.recognizer(limit_s=0.3), AsrOptions(language="en")
    async with asyncio.timeout(10):
        await recognizer.check(options)
        await recognizer.start(options)
        await recognizer.close()
    assert recognizer.model == "whisper"
    assert {model for model, start, end in server.asked if end and not start} == {"moonshine", "whisper"}


async def test_the_last_model_has_time_left_where_no_other_answers(server):
    server.hanging = {"whisper", "other"}
    recognizer, options = server.recognizer(last="moonshine", limit_s=0.3), AsrOptions(language="en")
    async with asyncio.timeout(10):
        await recognizer.check(options)
        await recognizer.start(options)
        await recognizer.close()
    assert recognizer.model == "moonshine"


async def test_the_last_model_is_asked_where_another_is_full(server):
    server.failures["whisper"] = TooManySessionsError("all are open")
    recognizer = server.recognizer(last="moonshine")
    await recognizer.check(AsrOptions(language="en"))
    assert recognizer.model == "moonshine"
    server.failures["moonshine"] = InferenceError("down")
    with pytest.raises(TooManySessionsError):
        await server.recognizer(last="moonshine").check(AsrOptions(language="en"))
