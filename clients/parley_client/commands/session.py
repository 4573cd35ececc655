"""The arguments that open a session, and what they open."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parley.protocol import (
    OUTPUT_SAMPLE_RATES,
    BargeInOptions,
    SamplingOptions,
    SilenceOptions,
    TurnOptions,
)
from parley_client.checks import EXAGGERATION, GUIDANCE, TEMPERATURE
from parley_client.commands.common import count, within
from parley_client.connection import connect
from parley_client.demo_tools import DEMO_TOOLS
from parley_client.options import Backoff, Deadlines
from parley_client.tools import ToolTable, load_tools

_PROMPT_AFTER_S = 10.0
_LONGEST_SILENCE_S = 600.0


def add_session(parser: argparse.ArgumentParser) -> None:
    """Everything that opens a session."""
    group = parser.add_argument_group("session")
    group.add_argument("--system-prompt", metavar="TEXT", help="who the agent is (default: the server's)")
    group.add_argument(
        "--greeting", metavar="TEXT", help="what the agent says first; empty: nothing (default: the server's)"
    )
    group.add_argument(
        "--language",
        default="en",
        help="what is spoken; both the recogniser and the voice have to know it (default: %(default)s)",
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
        help="said when nobody says anything; repeatable, for the next time (default: the server's)",
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


def tool_table(args: argparse.Namespace, on_answer: Callable[..., None] | None = None) -> ToolTable:
    """The built-in tools, unless they are not wanted, and the user's.

    Raises:
        ToolDefinitionError: the user's file is not usable.
    """
    table = ToolTable(() if args.no_demo_tools else DEMO_TOOLS, on_answer=on_answer)
    for function in load_tools(args.tools) if args.tools else ():
        table.add(function)
    return table


def open_call(args: argparse.Namespace, tools: ToolTable, **changes: Any) -> connect:
    """The connection that the arguments describe."""
    settings: dict[str, Any] = {
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
        "sampling": SamplingOptions(temperature=args.temperature),
        "greeting": args.greeting,
        "output_sample_rate": args.output_rate,
        "retry": Backoff(attempts=3),
        "deadlines": Deadlines(connect_s=args.timeout),
        **changes,
    }
    return connect(args.server, **settings)


def _silence(args: argparse.Namespace) -> SilenceOptions:
    after_s = args.silence_after
    if after_s is None and args.silence_prompt:
        after_s = _PROMPT_AFTER_S
    return SilenceOptions(
        prompt_after_ms=_ms(after_s), prompts=args.silence_prompt, hang_up_after_ms=_ms(args.hang_up_after)
    )


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(1000 * seconds)
