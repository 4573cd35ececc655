"""``parley voices``: list, make and delete the server's voices."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape

from parley.engines.speech import ChatterboxSpeaker
from parley.tts.synthesizers import ESPEAK
from parley.tts.voice_messages import VoiceDetails, VoiceSummary
from parley_client.cli.advice import command_for
from parley_client.cli.arguments import add_server, read_tls_options
from parley_client.cli.output import plain_table
from parley_client.errors import AudioFileError
from parley_stages import ServerConnection, Synthesis, VoiceInfo, open_server
from parley_stages.voices import MAX_FILE_BYTES, NoVoicesError, Voices

EXAMPLES = """\
  parley voices                    all voices that sessions may name
  parley voices enroll anna.wav --name Anna --consent "I agree. Anna"
  parley talk --voice woman-1      use one"""
HELP = "list, make and delete the server's voices"
_SAMPLE = (
    "sample used: how much of a voice's recording the synthesizer imitates. With 3 to 4 s speech begins\n"
    "sooner, with 10 s it is closest to the speaker; with --json it is called prompt_s."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    actions = parser.add_subparsers(dest="action", metavar="[ACTION]", help="default: list")
    parser.epilog = _SAMPLE
    listing = actions.add_parser(
        "list",
        help="all voices that sessions may name",
        epilog=_SAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    enroll = actions.add_parser("enroll", help="make a voice of a recording")
    enroll.add_argument(
        "file", type=Path, metavar="FILE", help="WAV, FLAC or OGG, one channel, 5-30 s of speech"
    )
    enroll.add_argument("--name", required=True, help="for people")
    enroll.add_argument("--consent", default="", metavar="TEXT", help="the speaker's consent, in words; kept")
    enroll.add_argument("--id", dest="voice_id", help="1-64 of a-z 0-9 _ - (default: made of the name)")
    enroll.add_argument("--language", action="append", default=[], help="spoken in it; repeatable")
    enroll.add_argument("--description", default="", metavar="TEXT")
    enroll.add_argument("--replace", action="store_true", help="in place of another voice of this id")
    show = actions.add_parser("show", help="all details of a voice, its consent too")
    delete = actions.add_parser("delete", help="forget a voice")
    for action in (show, delete):
        action.add_argument("voice_id", metavar="ID")
    for part in (parser, listing, enroll, show):
        default = False if part is parser else argparse.SUPPRESS
        part.add_argument(
            "--json", action="store_true", default=default, help="print one JSON object per voice"
        )
    for part in (parser, listing, enroll, show, delete):
        add_server(part, timeout_s=60.0, limits="an answer", again=part is not parser)
    parser.set_defaults(action="list")


async def run(args: argparse.Namespace, console: Console) -> int:
    """Do what the arguments ask for.

    Raises:
        ParleyError: the file cannot be read, or the server refused or failed.
    """
    recording = await asyncio.to_thread(_read, args.file) if args.action == "enroll" else b""
    async with (
        open_server(args.server, tls=read_tls_options(args), timeout_s=args.timeout) as server,
        Voices(server, timeout_s=args.timeout) as voices,
    ):
        if args.action == "list":
            await _list(args, console, server, voices)
        elif args.action == "show":
            _show_all(args, console, await voices.describe(args.voice_id))
        elif args.action == "delete":
            await voices.delete(args.voice_id)
            console.print(f"Deleted {escape(args.voice_id)}.")
        else:
            made = await voices.enroll(
                recording,
                name=args.name,
                consent=args.consent,
                voice_id=args.voice_id,
                languages=args.language,
                description=args.description,
                replace=args.replace,
            )
            _show_all(args, console, made)
    return 0


async def _list(args: argparse.Namespace, console: Console, server: ServerConnection, voices: Voices) -> None:
    try:
        recorded: Sequence[VoiceSummary] | None = await voices.list()
    except NoVoicesError:
        recorded = None
    async with Synthesis(server, timeout_s=args.timeout) as synthesis:
        fixed = [voice for voice in await synthesis.voices() if voice.synthesizer != ChatterboxSpeaker.model]
    if recorded is not None and {voice.synthesizer for voice in fixed} == {ESPEAK}:
        # Where voices are made, espeak alone is configured until a variable names who speaks with them.
        fixed = []
    _show(args, console, [*(recorded or ()), *map(_summary, fixed)])


def _summary(voice: VoiceInfo) -> VoiceSummary:
    known = [part for part in (voice.synthesizer, voice.gender, voice.description) if part]
    details = VoiceDetails(name=voice.name, languages=list(voice.languages), description=", ".join(known))
    return VoiceSummary(voice_id=voice.voice_id, digest="", prompt_s=0.0, built_in=True, details=details)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise AudioFileError(f"{path}: {error.strerror or error}") from error
    if len(data) > MAX_FILE_BYTES:
        raise AudioFileError(f"{path}: more than {MAX_FILE_BYTES >> 20} MiB")
    return data


def _show(args: argparse.Namespace, console: Console, voices: Sequence[VoiceSummary]) -> None:
    if args.json:
        for voice in voices:
            print(msgspec.json.encode(voice).decode(), flush=True)
        return
    if not voices:
        command = command_for("voices enroll", args.server)
        console.print(f"There are no voices yet; `{command}` makes one of a recording.")
        return
    are_recorded = any(voice.prompt_s for voice in voices)
    table = plain_table("id", "name", "languages", *(["sample used"] if are_recorded else []), "")
    for voice in voices:
        sample = f"{voice.prompt_s:.1f} s" if voice.prompt_s else ""
        table.add_row(
            escape(voice.voice_id),
            escape(voice.details.name),
            escape(", ".join(voice.details.languages)),
            *([sample] if are_recorded else []),
            escape(_remark(voice)),
        )
    console.print(table)
    if are_recorded:
        console.print(f"\n[dim]{_SAMPLE}[/]")


def _remark(voice: VoiceSummary) -> str:
    if voice.built_in:
        return voice.details.description or "built in"
    return ", ".join(voice.details.warnings)


def _show_all(args: argparse.Namespace, console: Console, voice: VoiceSummary) -> None:
    if args.json:
        _show(args, console, [voice])
        return
    details = voice.details
    rows = {
        "id": voice.voice_id,
        "name": details.name,
        "languages": ", ".join(details.languages),
        "description": details.description,
        "consent": details.consent,
        "recording": f"{details.reference_s:.1f} s; sample used: {voice.prompt_s:.1f} s",
        "made for": f"{details.variant}, checkpoint {details.checkpoint}",
        "warnings": ", ".join(details.warnings),
    }
    for name, value in rows.items():
        if value:
            console.print(f"[dim]{name:>12}[/]  {escape(value)}", soft_wrap=True)
