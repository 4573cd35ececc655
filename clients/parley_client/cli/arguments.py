"""Arguments that several commands share, and the session that they open."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from parley.protocol import (
    OUTPUT_SAMPLE_RATES,
    BargeInOptions,
    EndingOptions,
    SamplingOptions,
    SilenceOptions,
    TurnOptions,
)
from parley.tls import VARIABLES, TlsOptions, read_tls
from parley_client.audio.microphone import DEFAULT_CHUNK_MS
from parley_client.cli.demo_tools import DEMO_TOOLS
from parley_client.connection import DEFAULT_SERVER, connect
from parley_client.errors import AudioFileError
from parley_client.options import EXAGGERATION, GUIDANCE, TEMPERATURE, Backoff, Deadlines
from parley_client.tools import ToolTable, load_tools

_CHUNK_MS = (10, 500)

_PROMPT_AFTER_S = 10.0
_LONGEST_SILENCE_S = 600.0
_MOST_S = 86_400.0
"""A day: longest limit of time."""


def add_server(
    parser: argparse.ArgumentParser,
    timeout_s: float = 10.0,
    limits: str = "connecting",
    *,
    again: bool = False,
) -> None:
    """``--server`` and ``--timeout``.

    Args:
        parser: of the command.
        timeout_s: default of the limit (seconds).
        limits: what it limits.
        again: the parser is a part of a command that has both; the values given there are the defaults.
    """
    parser.add_argument(
        "--server",
        type=address,
        default=argparse.SUPPRESS if again else DEFAULT_SERVER,
        metavar="HOST:PORT",
        help=f"Triton's gRPC endpoint (default: {DEFAULT_SERVER})",
    )
    add_tls(parser, again=again)
    add_timeout(parser, timeout_s, limits, again=again)


def add_servers(parser: argparse.ArgumentParser) -> None:
    """``--server``, which may be repeated, and ``--timeout``.

    ``args.server`` is the first one, ``args.servers`` are all.
    """
    parser.add_argument(
        "--server",
        type=address,
        action=_AddServer,
        default=DEFAULT_SERVER,
        metavar="HOST:PORT",
        help="Triton's gRPC endpoint; repeatable, for other servers that take the call if one cannot "
        f"(default: {DEFAULT_SERVER})",
    )
    parser.set_defaults(servers=())
    add_tls(parser)
    add_timeout(parser)


def add_tls(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    """How the server is spoken to by TLS; see :func:`read_tls_options`."""
    group = parser.add_argument_group(
        "TLS to the server", f"Without any of these the environment counts: {', '.join(VARIABLES)}."
    )
    nothing = argparse.SUPPRESS if again else None
    group.add_argument(
        "--tls",
        action="store_true",
        default=argparse.SUPPRESS if again else False,
        help="with a certificate that this system trusts",
    )
    for name, what in (
        ("--ca", "the authority that has signed the server's certificate (PEM)"),
        ("--cert", "this client's certificate, where the server demands one (PEM)"),
        ("--key", "its private key (PEM)"),
    ):
        group.add_argument(name, type=Path, metavar="FILE", default=nothing, help=what)
    group.add_argument(
        "--server-name",
        metavar="NAME",
        default=nothing,
        help="the name in the server's certificate (default: the host of --server)",
    )


def read_tls_options(args: argparse.Namespace) -> TlsOptions | None:
    """How the arguments, or else the environment, say that the server is spoken to by TLS; None: it is not.

    Raises:
        InvalidInputError: a certificate is given without its key, or a key without its certificate.
    """
    if not (args.tls or args.ca or args.cert or args.key):
        found = read_tls(os.environ)
        return replace(found, server_name=args.server_name) if found and args.server_name else found
    return TlsOptions(
        ca_file=args.ca, server_name=args.server_name or "", cert_file=args.cert, key_file=args.key
    )


class _AddServer(argparse.Action):
    def __call__(
        self, _: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, __: str | None = None
    ) -> None:
        namespace.servers = (*namespace.servers, values)
        namespace.server = namespace.servers[0]


def add_timeout(
    parser: argparse.ArgumentParser,
    timeout_s: float = 10.0,
    limits: str = "connecting",
    *,
    again: bool = False,
) -> None:
    """``--timeout``, as :func:`add_server` adds it."""
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=argparse.SUPPRESS if again else timeout_s,
        metavar="S",
        help=f"limit for {limits} (default: {timeout_s} s)",
    )


def add_pacing(parser: argparse.ArgumentParser, turn_timeout_s: float) -> None:
    """``--turn-timeout`` and ``--chunk-ms``."""
    parser.add_argument(
        "--turn-timeout",
        type=seconds,
        default=turn_timeout_s,
        metavar="S",
        help="longest wait for an answer (default: %(default)s s)",
    )
    parser.add_argument(
        "--chunk-ms",
        type=_chunk_ms,
        metavar="MS",
        default=DEFAULT_CHUNK_MS,
        help=f"length of one piece of audio, {_CHUNK_MS[0]} to {_CHUNK_MS[1]} (default: %(default)s)",
    )


def add_events(parser: argparse.ArgumentParser) -> None:
    """``--events``."""
    parser.add_argument(
        "--events",
        type=Path,
        metavar="FILE.jsonl",
        help="append the call's events, with what is said, as JSON lines; `parley trace` draws them",
    )


def add_verbose(parser: argparse.ArgumentParser) -> None:
    """``--verbose``."""
    parser.add_argument("--verbose", action="store_true", help="say what each measured latency means")


def ending_signals() -> list[signal.Signals]:
    """The signals that end the program besides Ctrl-C: SIGTERM, and SIGHUP if it is not ignored."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM] if ignored else [signal.SIGTERM, signal.SIGHUP]


@contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], None], *more: signal.Signals) -> Iterator[None]:
    """Handle the ending signals, and ``more``, by ``handler`` for a while."""
    before = {number: signal.signal(number, handler) for number in [*ending_signals(), *more]}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def run_to_end(work: Coroutine[Any, Any, int]) -> int:
    """The exit status of ``work``; Ctrl-C and :func:`ending_signals` cancel it, so that it hangs up a call.

    Raises:
        KeyboardInterrupt: it was cancelled.
    """
    before = {number: signal.getsignal(number) for number in ending_signals()}

    async def supervised() -> int:
        task = asyncio.current_task()
        assert task is not None
        for number in before:
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await work

    try:
        return asyncio.run(supervised())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def address(text: str) -> str:
    """``HOST:PORT``, as an argument."""
    host, _, port = text.rpartition(":")
    if "/" in host or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise argparse.ArgumentTypeError(f"HOST:PORT expected, for example {DEFAULT_SERVER}, not {text!r}")
    return text


def _chunk_ms(text: str) -> int:
    least, most = _CHUNK_MS
    if not text.isdecimal() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{least} to {most} expected, not {text!r}")
    return int(text)


def check_output(path: Path | None) -> None:
    """Notice before a call that its recording cannot be written.

    Raises:
        AudioFileError: it cannot.
    """
    if path is None:
        return
    if path.is_dir():
        raise AudioFileError(f"{path}: is a folder; name a file")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise AudioFileError(f"{path}: cannot be written")


def within(least: float, most: float) -> Callable[[str], float]:
    """A number in a range, as an argument."""

    def read(text: str) -> float:
        value = float(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{least:g} to {most:g} expected, not {text!r}")
        return value

    read.__name__ = "number"  # as argparse names it where `float` fails
    return read


def count(text: str) -> int:
    """A whole number that is not negative, as an argument."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a whole number expected, not {text!r}")
    return int(text)


def positive(text: str) -> float:
    """A number above zero, as an argument."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"a number above 0 expected, not {text!r}")
    return value


def seconds(text: str) -> float:
    """A limit of time, as an argument: gRPC and asyncio do not take every number of seconds."""
    value = float(text)
    if not 0 < value <= _MOST_S:
        raise argparse.ArgumentTypeError(f"seconds above 0 expected, {_MOST_S:g} at most, not {text!r}")
    return value


def add_session(parser: argparse.ArgumentParser) -> None:
    """Everything that opens a session."""
    group = parser.add_argument_group("session")
    group.add_argument(
        "--agent",
        default="",
        metavar="NAME",
        help="an agent that the server defines; the built-in tools are left out (default: the server's own)",
    )
    group.add_argument("--system-prompt", metavar="TEXT", help="who the agent is (default: the server's)")
    group.add_argument(
        "--greeting", metavar="TEXT", help="what the agent says first; empty: nothing (default: the server's)"
    )
    group.add_argument(
        "--language",
        default="en",
        help="what is spoken; both the recogniser and the voice have to support it (default: %(default)s)",
    )
    group.add_argument(
        "--phrase", action="append", default=[], metavar="TEXT", help="a name or word to expect; repeatable"
    )
    group.add_argument(
        "--tools",
        type=Path,
        metavar="FILE.py",
        help="functions marked with @tool, offered beside the built-in get_weather, get_time and set_timer",
    )
    group.add_argument(
        "--no-demo-tools",
        action="store_true",
        help="leave the built-in ones out, for example because the server has tools of their names",
    )
    group.add_argument(
        "--temperature",
        type=within(*TEMPERATURE),
        metavar="X",
        help="how freely the language model writes, 0-2; 0: always the likeliest (default: the server's)",
    )
    _add_voice(parser)
    _add_turns(parser)


def _add_voice(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the agent's voice")
    group.add_argument(
        "--voice",
        metavar="NAME",
        help="one of those that `parley voices` lists; any other is refused (default: the server's choice)",
    )
    group.add_argument(
        "--exaggeration",
        type=within(*EXAGGERATION),
        metavar="X",
        help="how much emotion the voice has, 0-2, if it has any (default: the server's)",
    )
    group.add_argument(
        "--guidance",
        type=within(*GUIDANCE),
        metavar="X",
        help="how closely the voice keeps to the text's pace, 0-1, if it can (default: the server's)",
    )
    group.add_argument(
        "--output-rate",
        type=int,
        choices=OUTPUT_SAMPLE_RATES,
        default=22_050,
        help="sample rate of the agent's audio (default: %(default)s Hz)",
    )


def _add_turns(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("whose turn it is")
    group.add_argument(
        "--eagerness",
        choices=("eager", "normal", "patient", "off"),
        help="how soon a pause counts as the end of what is said; off: at once (default: the server's)",
    )
    group.add_argument(
        "--min-words",
        type=count,
        metavar="N",
        help="words that interrupt the agent; 0: any speech does (default: 1)",
    )
    group.add_argument(
        "--silence-prompt",
        action="append",
        metavar="TEXT",
        help="said when both sides are silent; repeatable, for the next time (default: the server's)",
    )
    group.add_argument(
        "--silence-after",
        type=within(0.0, _LONGEST_SILENCE_S),
        metavar="S",
        help=f"when that is said; 0: never (default: {_PROMPT_AFTER_S:g} s with --silence-prompt, "
        "otherwise the server's)",
    )
    group.add_argument(
        "--hang-up-after",
        type=within(0.0, _LONGEST_SILENCE_S),
        metavar="S",
        help="silence after which the server ends the call; 0: never (default: the server's)",
    )
    group.add_argument("--end-call", action="store_true", help="let the language model end the call")


def tool_table(args: argparse.Namespace, on_answer: Callable[..., None] | None = None) -> ToolTable:
    """The built-in tools, unless they are not wanted or belong to another agent, and the user's.

    Raises:
        ToolDefinitionError: the user's file is not usable.
    """
    table = ToolTable(() if args.no_demo_tools or args.agent else DEMO_TOOLS, on_answer=on_answer)
    for function in load_tools(args.tools) if args.tools else ():
        table.add(function)
    return table


def open_call(args: argparse.Namespace, tools: ToolTable, **changes: Any) -> connect:
    """The connection that the arguments describe."""
    settings: dict[str, Any] = {
        "agent": args.agent,
        "system_prompt": args.system_prompt,
        "tools": tools,
        "voice": args.voice,
        "exaggeration": args.exaggeration,
        "guidance_weight": args.guidance,
        "language": args.language,
        "phrases": args.phrase,
        "turn": TurnOptions(eagerness=args.eagerness),
        "barge_in": BargeInOptions() if args.min_words is None else BargeInOptions(min_words=args.min_words),
        "silence": _silence(args),
        "ending": EndingOptions(end_call=args.end_call),
        "sampling": SamplingOptions(temperature=args.temperature),
        "greeting": args.greeting,
        "output_sample_rate": args.output_rate,
        "retry": Backoff(attempts=3),
        "deadlines": Deadlines(connect_s=args.timeout),
        # Servers that a command has started itself have none.
        "tls": read_tls_options(args) if hasattr(args, "tls") else None,
        **changes,
    }
    return connect(getattr(args, "servers", ()) or args.server, **settings)


def _silence(args: argparse.Namespace) -> SilenceOptions:
    after_s = args.silence_after
    if after_s is None and args.silence_prompt:
        after_s = _PROMPT_AFTER_S
    return SilenceOptions(
        prompt_after_ms=_ms(after_s), prompts=args.silence_prompt, hang_up_after_ms=_ms(args.hang_up_after)
    )


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(1000 * seconds)
