"""``parley transcribe``: write down what is said in audio files."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape

from parley.asr.decoding.boosting import MAX_WEIGHT
from parley.asr.messages import Segment, TranscribeReply, TranscribeRequest
from parley.errors import ParleyError
from parley.languages import DETECT
from parley.names import suggest_name
from parley.protocol import Word
from parley.timeouts import cancel_all
from parley_client.audio.files import read_speech
from parley_client.cli.advice import advice
from parley_client.cli.arguments import add_server, count, read_tls_options, within
from parley_client.cli.output import print_error
from parley_client.errors import AudioFileError, ConnectError
from parley_stages.server import LazyServer
from parley_stages.transcription import MAX_SECONDS, TRANSCRIBERS, Transcriber, check_loaded

EXAMPLES = """\
  parley transcribe meeting.wav    its text
  parley transcribe --words --json *.wav
                                   one JSON object per file, with each word's time
  parley transcribe --model whisper --language es llamada.wav
                                   by another model than the server's first"""
HELP = "write down what is said in audio files"
_AT_ONCE = 8
_SUFFIX = "_transcribe"
_SHORT_NAMES = [name.removesuffix(_SUFFIX) for name in TRANSCRIBERS]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="WAV, FLAC, OGG or MP3")
    parser.add_argument("--language", default="en", help="what is spoken (default: %(default)s)")
    parser.add_argument(
        "--model",
        type=_transcriber,
        metavar="NAME",
        help=f"the model: one of {', '.join(_SHORT_NAMES)} (default: the first of them that the server has, "
        "for other languages than English whisper)",
    )
    parser.add_argument(
        "--phrase", action="append", default=[], metavar="TEXT", help="a name or word to expect; repeatable"
    )
    parser.add_argument(
        "--phrase-weight",
        type=within(0, MAX_WEIGHT),
        default=TranscribeRequest().phrase_weight,
        metavar="W",
        help="how much phrases are favoured, 0 to 10 (default: %(default)s)",
    )
    parser.add_argument(
        "--nbest",
        type=count,
        default=0,
        metavar="N",
        help="with --json: the N best readings too, of a server that searches with a beam (at most 16)",
    )
    parser.add_argument(
        "--words",
        action="store_true",
        help="print each word with its times (seconds); segments if the server knows no times of words",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per file")
    add_server(parser, timeout_s=600.0, limits="a transcript")


async def run(args: argparse.Namespace, console: Console) -> int:
    """Transcribe the files, several at a time, and print the texts in order.

    Returns:
        The exit status: 1 if a file cannot be read, or the server refused it; the others are transcribed.

    Raises:
        ConnectError: the server cannot be reached.
        ModelUnavailableError: it has not loaded the model of ``--model``.
    """
    request = TranscribeRequest(
        language=args.language,
        phrases=args.phrase,
        phrase_weight=args.phrase_weight,
        nbest=args.nbest,
    )
    places = asyncio.Semaphore(_AT_ONCE)

    async with LazyServer(args.server, tls=read_tls_options(args)) as server:
        if args.model:
            await check_loaded((await server.get()).channel, args.model, args.timeout)

        async def transcribe(path: Path) -> TranscribeReply:
            async with places:
                audio = await asyncio.to_thread(read_speech, path, max_seconds=MAX_SECONDS)
                async with Transcriber(
                    await server.get(), model=args.model, timeout_s=args.timeout
                ) as transcriber:
                    return await transcriber.transcribe(audio, request)

        tasks = [asyncio.create_task(transcribe(path)) for path in args.files]
        status, advised = 0, ""
        try:
            for path, task in zip(args.files, tasks, strict=True):
                try:
                    _show(args, console, path, await task)
                except ConnectError:
                    raise
                except ParleyError as error:
                    said = advice(error, args.server, command="transcribe")
                    print_error(_named(path, error), error.code, said if said != advised else "")
                    status, advised = 1, said
        finally:
            await cancel_all(tasks)
    return status


def _transcriber(text: str) -> str:
    """A model for recordings, as an argument; ``_transcribe`` may be left out."""
    if text in TRANSCRIBERS:
        return text
    if text not in _SHORT_NAMES:
        raise argparse.ArgumentTypeError(
            f"no model for recordings {text!r}{suggest_name(text, _SHORT_NAMES)}; there are "
            f"{', '.join(_SHORT_NAMES)}. `parley say` uses the recogniser of calls"
        )
    return text + _SUFFIX


def _named(path: Path, error: ParleyError) -> str:
    """What failed, with the file's name; errors of files have it already."""
    return str(error) if isinstance(error, AudioFileError) else f"{path}: {error}"


def _print_remark(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _show(args: argparse.Namespace, console: Console, path: Path, reply: TranscribeReply) -> None:
    if args.json:
        fields = {"file": str(path), **msgspec.to_builtins(reply)}
        print(msgspec.json.encode(fields).decode(), flush=True)
        return
    if len(args.files) > 1:
        console.print(f"[dim]{escape(str(path))}[/]")
    if not reply.text:
        _print_remark(f"{path}: {_describe_empty(reply, args.language)}")
    elif not args.words:
        print(reply.text, flush=True)
    elif not reply.words:
        _print_remark(f"{path}: the server's model has no times of words; these are those of segments")
        for part in reply.segments:
            _print_timed(part)
    else:
        for word in reply.words:
            _print_timed(word)


def _describe_empty(reply: TranscribeReply, language: str) -> str:
    """Why a recording has no text."""
    if reply.speech_ms == 0:
        return "(no speech)"
    of_language = "" if language in ("", DETECT) else f" of language {language}"
    found = "" if reply.speech_ms is None else f" in {reply.speech_ms / 1000:.1f} s of speech"
    return f"(no words{of_language} recognised{found})"


def _print_timed(part: Word | Segment) -> None:
    times = f"{part.start_ms / 1000:8.2f} {part.end_ms / 1000:8.2f}"
    print(f"{times}  {part.confidence:4.0%}  {part.text}", flush=True)
