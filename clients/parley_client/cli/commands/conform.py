"""``parley conform``: check how a server, Parley's or another, speaks a protocol."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import soundfile
from rich.console import Console
from rich.text import Text

from parley_client.cli.arguments import check_output, positive, run_to_end
from parley_client.errors import UsageError
from parley_testing.conform import deepgram, openai_realtime, sessions, twilio
from parley_testing.conform.checks import CheckResult, ProtocolCheck, run_checks
from parley_testing.conform.connection import RATE, Target
from parley_testing.conform.report import MARKS, summary, to_html

HELP = "check how a server, Parley's or another, speaks a protocol"
EXAMPLES = """\
  parley conform --protocol openai-realtime --url http://127.0.0.1:8080 question.wav
  parley conform --protocol deepgram --url https://voice.example.com --html out/deepgram.html question.wav
  parley conform --protocol twilio --url https://voice.example.com/v1/twilio/voice question.wav"""
_KEY = "PARLEY_KEY"
_EPILOG = f"""\
{_KEY} is the key of the server, for Twilio the auth token. Every check has connections of its own.
For Twilio the URL is that of the webhook for calls, or of the media stream (wss://…).

exit status: 0 every check passed, 1 one was refused or failed, 2 wrong usage, or nothing listens there"""
PROTOCOLS = {
    "openai-realtime": openai_realtime.CHECKS,
    "deepgram": deepgram.CHECKS,
    "twilio": twilio.CHECKS,
    "sessions": sessions.CHECKS,
}
_MOST_SPEECH_S = 15.0
_STYLES = {"passed": "green", "refused": "yellow", "failed": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("speech", type=Path, metavar="QUESTION.wav", help="a spoken question, mono, 16 kHz; 15 s at most")
    add("--url", required=True, help="http://HOST:PORT or https://HOST, without /v1")
    add("--protocol", required=True, choices=PROTOCOLS)
    add("--model", default="", help="its name at the server, in the protocol openai-realtime")
    add("--public-url", default="", help="where Twilio reaches the server, if that is another origin")
    add("--account", default="AC1", metavar="SID", help="of Twilio, where the server takes one only")
    add("--only", action="append", metavar="CHECK", help="only this check; again for others")
    add("--within", type=positive, default=30.0, metavar="S", help="how long an event may take (default: 30)")
    add(
        "--pause",
        type=positive,
        default=0.0,
        metavar="S",
        help="between checks, for a server of few sessions",
    )
    add("--json", type=Path, metavar="FILE", help="write the outcomes")
    add("--html", type=Path, metavar="FILE", help="write a report")


def run(args: argparse.Namespace, console: Console) -> int:
    """Run the checks, and print what came of them."""
    checks = PROTOCOLS[args.protocol].checks
    unknown = set(args.only or ()) - {check.name for check in checks}
    if unknown:
        known = ", ".join(check.name for check in checks)
        raise UsageError(f"there is no check {', '.join(sorted(unknown))}; there are {known}")
    chosen = [check for check in checks if not args.only or check.name in args.only]
    for path in (args.json, args.html):
        check_output(path)
    _check_url(args)
    target = _target(args)
    outcomes: list[CheckResult] = []
    status = run_to_end(_run(chosen, target, outcomes, console, args.pause))
    if args.json:
        report = {"url": args.url, "protocol": args.protocol, "checks": outcomes}
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    if args.html:
        args.html.write_text(to_html(args.url, args.protocol, outcomes), encoding="utf-8")
    return status


async def _run(
    checks: list[ProtocolCheck], target: Target, outcomes: list[CheckResult], console: Console, pause_s: float
) -> int:
    await _reach(target.url)
    async for outcome in run_checks(checks, target, pause_s=pause_s):
        outcomes.append(outcome)
        console.print(Text.assemble((f"{MARKS[outcome.result]:>7} ", _STYLES[outcome.result]), outcome.title))
        if outcome.detail:
            console.print(Text(f"          {outcome.name}: {outcome.detail}"), style="dim")
    console.print(summary(outcomes))
    return int(any(outcome.result != "passed" for outcome in outcomes))


async def _reach(url: str) -> None:
    """Raise UsageError unless something listens there."""
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme in ("https", "wss") else 80)
        _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, ValueError) as error:
        raise UsageError(f"--url {url}: nothing listens there ({error})") from error
    writer.close()


def _check_url(args: argparse.Namespace) -> None:
    """Raise UsageError for an address or a key that makes every check fail."""
    is_twilio = args.protocol == "twilio"
    schemes = ("http://", "https://", *(("ws://", "wss://") if is_twilio else ()))
    if not args.url.startswith(schemes):
        raise UsageError(f"--url {args.url!r} does not begin with {', '.join(schemes)}")
    if not is_twilio and args.url.rstrip("/").endswith(("/v1", "/v2")):
        raise UsageError(f"--url {args.url}: leave {args.url.rstrip('/')[-3:]} out")
    if is_twilio and not os.environ.get(_KEY):
        raise UsageError(f"{_KEY} has to be the account's auth token")


def _target(args: argparse.Namespace) -> Target:
    try:
        speech, rate = soundfile.read(args.speech, dtype="int16", frames=int(RATE * _MOST_SPEECH_S))
    except (OSError, soundfile.SoundFileError) as error:
        raise UsageError(f"{args.speech}: {error}") from error
    if speech.ndim != 1 or rate != RATE or not len(speech):
        raise UsageError(
            f"{args.speech}: audio of one channel and {RATE} Hz is needed, not empty: "
            f"ffmpeg -i {args.speech} -ac 1 -ar {RATE} question.wav"
        )
    return Target(
        url=args.url,
        speech=speech,
        key=os.environ.get(_KEY, ""),
        model=args.model,
        public_url=args.public_url.rstrip("/"),
        account=args.account,
        within_s=args.within,
    )
