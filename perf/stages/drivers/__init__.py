"""Endpoints by protocol: a file for each, and the table of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from stages.drivers import deepgram, openai_http, openai_realtime, parley_grpc
from stages.drivers.common import EndpointOptions, read_options
from stages.protocols import Endpoint, EndpointError, Stage


@dataclass(frozen=True)
class Driver:
    """How one stage is reached by one protocol."""

    stage: Stage
    what: str
    """For the list of drivers."""
    open: Callable[[EndpointOptions], AbstractAsyncContextManager[Endpoint]]
    """Makes the endpoint; leaving it frees everything. Both may raise EndpointError."""
    extra: tuple[str, ...] = ()
    """Options that no other driver has."""
    needs_url: bool = False
    """Whether there is no public service that is meant without a URL."""


DRIVERS: Mapping[str, Driver] = {
    "parley-recognizer": Driver(
        Stage.RECOGNIZER,
        "a recogniser of streams, by gRPC (model=moonshine; finals=yes: no partial texts)",
        parley_grpc.open_recognizer,
        (parley_grpc.FINALS_ONLY,),
        needs_url=True,
    ),
    "parley-recording": Driver(
        Stage.RECOGNIZER, "the model for recordings, by gRPC", parley_grpc.open_transcriber, needs_url=True
    ),
    "parley-llm": Driver(
        Stage.LANGUAGE_MODEL, "the language model, by gRPC", parley_grpc.open_language_model, needs_url=True
    ),
    "parley-voice": Driver(
        Stage.VOICE, "a synthesizer, by gRPC (model=piper)", parley_grpc.open_voice, needs_url=True
    ),
    "parley-call": Driver(
        Stage.CALL, "calls with voice_agent, by gRPC", parley_grpc.open_agent, needs_url=True
    ),
    "openai-chat": Driver(
        Stage.LANGUAGE_MODEL, "POST /chat/completions, streamed", openai_http.open_language_model
    ),
    "openai-speech": Driver(Stage.VOICE, "POST /audio/speech, PCM", openai_http.open_voice),
    "openai-recording": Driver(Stage.RECOGNIZER, "POST /audio/transcriptions", openai_http.open_transcriber),
    "openai-realtime-recognizer": Driver(
        Stage.RECOGNIZER,
        "a transcription session of the Realtime API, by WebSocket",
        openai_realtime.open_recognizer,
        (openai_realtime.DETECTION,),
    ),
    "openai-realtime": Driver(
        Stage.CALL,
        "calls with the Realtime API, by WebSocket",
        openai_realtime.open_agent,
        (openai_realtime.DETECTION,),
    ),
    "deepgram-recognizer": Driver(Stage.RECOGNIZER, "WS /v1/listen", deepgram.open_recognizer),
    "deepgram-speech": Driver(Stage.VOICE, "WS /v1/speak", deepgram.open_voice),
}


@dataclass(frozen=True)
class EndpointSpec:
    """An endpoint that is to be measured."""

    name: str
    """In tables."""
    driver: Driver
    options: EndpointOptions = field(repr=False)


def parse_endpoint(written: str) -> EndpointSpec:
    """An endpoint from ``DRIVER[,option=value]...``.

    Raises:
        EndpointError: the driver or an option is unknown, or something is missing.
    """
    kind, *pairs = written.split(",")
    driver = DRIVERS.get(kind)
    if driver is None:
        raise EndpointError(f"unknown driver {kind!r}; there are {', '.join(DRIVERS)}")
    for pair in pairs:
        if "=" not in pair:
            raise EndpointError(f"{pair!r} is not option=value")
    given = dict(pair.split("=", 1) for pair in pairs)
    options = read_options(given, driver.extra)
    if driver.needs_url and not options.url:
        raise EndpointError(f"{kind} needs url=HOST:PORT")
    return EndpointSpec(given.get("name") or _name_of(kind, options), driver, options)


def _name_of(kind: str, options: EndpointOptions) -> str:
    where = urlsplit(options.url).netloc or options.url
    parts = [kind, options.model, options.voice, f"at {where}" if where else ""]
    return " ".join(filter(None, parts))
