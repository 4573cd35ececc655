"""``parley transcribe``: write down what is said in audio files."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape

from parley.asr.messages import TranscribeReply, TranscribeRequest
from parley_client.audio.files import read_speech
from parley_client.commands.common import positive
from parley_client.connection import DEFAULT_SERVER
from parley_client.transcription import MAX_SECONDS, Transcriber

HELP = "write down what is said in audio files"
_AT_ONCE = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="WAV, FLAC, OGG or MP3")
    parser.add_argument("--language", default="en", help="what is spoken (default: %(default)s)")
    parser.add_argument(
        "--phrase", action="append", default=[], metavar="TEXT", help="a name or word to expect; repeatable"
    )
    parser.add_argument(
        "--phrase-weight",
        type=float,
        default=TranscribeRequest().phrase_weight,
        metavar="W",
        help="how much phrases are favoured, 0 to 10 (default: %(default)s)",
    )
    parser.add_argument(
        "--nbest",
        type=int,
        default=0,
        metavar="N",
        help="with --json: the N best readings too, of a server that searches with a beam (at most 16)",
    )
    parser.add_argument("--words", action="store_true", help="print each word with its times (seconds)")
    parser.add_argument("--json", action="store_true", help="print one JSON object per file")
    parser.add_argument(
        "--server",
        default=DEFAULT_SERVER,
        metavar="HOST:PORT",
        help="Triton's gRPC endpoint (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=positive,
        default=600.0,
        metavar="S",
        help="longest wait for a transcript (default: %(default)s s)",
    )


async def run(args: argparse.Namespace, console: Console) -> int:
    """Transcribe the files, several at a time, and print the texts in order.

    Raises:
        ParleyError: a file cannot be read, or the server failed.
    """
    request = TranscribeRequest(
        language=args.language,
        phrases=args.phrase,
        phrase_weight=args.phrase_weight,
        nbest=args.nbest,
    )
    places = asyncio.Semaphore(_AT_ONCE)

    async with Transcriber(args.server) as transcriber:

        async def transcribe(path: Path) -> TranscribeReply:
            async with places:
                audio = await asyncio.to_thread(read_speech, path, max_seconds=MAX_SECONDS)
                return await transcriber.transcribe(audio, request, timeout_s=args.timeout)

        tasks = [asyncio.create_task(transcribe(path)) for path in args.files]
        try:
            for path, task in zip(args.files, tasks, strict=True):
                _show(args, console, path, await task)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return 0


def _show(args: argparse.Namespace, console: Console, path: Path, reply: TranscribeReply) -> None:
    if args.json:
        fields = {"file": str(path), **msgspec.to_builtins(reply)}
        print(msgspec.json.encode(fields).decode(), flush=True)
        return
    if len(args.files) > 1:
        console.print(f"[dim]{escape(str(path))}[/]")
    if not args.words:
        print(reply.text, flush=True)
        return
    for word in reply.words:
        times = f"{word.start_ms / 1000:8.2f} {word.end_ms / 1000:8.2f}"
        print(f"{times}  {word.confidence:4.0%}  {word.text}", flush=True)
