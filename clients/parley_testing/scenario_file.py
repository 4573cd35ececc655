"""Scenario files. README.md beside this file says what may stand in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from parley import protocol
from parley_testing.matching import plain_words
from parley_testing.scenario import (
    DEMO_NAMES,
    Alternatives,
    Answered,
    Background,
    Caller,
    Exchange,
    ExpectedCall,
    Kind,
    RecordingNotFoundError,
    Scenario,
    ScenarioError,
    Sentence,
    ToolScript,
    parse_cue,
    parse_sentence,
)
from parley_testing.sounds import LOOPS, SOUNDS
from parley_testing.voices import models_folder

_TURNS = ("say", "file", "text", "dtmf")
_LEAST_ECHO_MS = 50  # the microphone's chunk, and some
_LONGEST_QUIET_MS = 60_000
_AMONG_WEIGHTS = "models:"


class _Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to come of an exchange; what is left out follows from its kind."""

    heard: list[str | list[str]] = []
    """What the agent has to understand; a list holds wordings, and one is enough."""
    tools: list[str] = []
    """Calls such as ``set_timer(minutes=10, label='tea')``, in their order."""
    answer: list[str | list[str]] = []
    """Each has to be in the answer; likewise."""
    answered: Answered | None = None
    interrupts: bool | None = None


class _Exchange(msgspec.Struct, forbid_unknown_fields=True):
    say: str | None = None
    file: str | None = None
    backchannel: str | None = None
    sound: str | None = None
    text: str | None = None
    dtmf: str | None = None
    quiet_ms: int | None = None
    words: str = ""
    """What is said in ``file``."""
    part: tuple[int, int] | None = None
    """Of ``file``: from and to (milliseconds)."""
    cuts: list[tuple[int, int]] = []
    """Pauses in ``file``: where and how long (milliseconds)."""
    at: str = "idle+600"
    voice: str | None = None
    rate: float | None = None
    gain_db: float = 0.0
    background: Background | None = None
    expect: _Expect = _Expect()


class _File(msgspec.Struct, forbid_unknown_fields=True):
    title: str
    exchange: list[_Exchange]
    tags: list[str] = []
    session: dict[str, Any] = {}
    caller: Caller = Caller()
    tools: list[str] = msgspec.field(default_factory=lambda: list(DEMO_NAMES))
    tool: list[ToolScript] = []


def load_scenarios(
    paths: list[Path], on_left_out: Callable[[ScenarioError], None] | None = None
) -> list[Scenario]:
    """Read scenario files, and all of those in folders.

    Args:
        paths: files and folders.
        on_left_out: called for those in folders whose recordings have not been fetched; None:
            that is an error.

    Raises:
        ScenarioError: a file is missing or not valid, or there is none; the message says which and where.
    """
    scenarios: list[Scenario] = []
    for path in paths:
        if not path.is_dir():
            scenarios.append(load_scenario(path))
            continue
        for file in sorted(path.glob("*.toml")):
            try:
                scenarios.append(load_scenario(file))
            except RecordingNotFoundError as error:
                if on_left_out is None:
                    raise
                on_left_out(error)
    if not scenarios:
        raise ScenarioError(f"no scenarios in {', '.join(map(str, paths))}")
    return scenarios


def load_scenario(path: Path) -> Scenario:
    """Read a scenario.

    Raises:
        ScenarioError: the file is missing or not valid; the message says where.
    """
    try:
        raw = msgspec.toml.decode(path.read_bytes(), type=_File)
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path}: {error}") from error
    try:
        return _scenario(path, raw)
    except ScenarioError as error:
        raise type(error)(f"{path}: {error}") from error


def _scenario(path: Path, raw: _File) -> Scenario:
    if not raw.exchange:
        raise ScenarioError("at least one [[exchange]] is needed")
    _check_background(raw.caller.background)
    exchanges = []
    for index, one in enumerate(raw.exchange):
        try:
            exchanges.append(_exchange(index, one, raw.caller, path.parent))
        except ScenarioError as error:
            raise type(error)(f"exchange {index + 1}: {error}") from error
    scripts = {script.name: script for script in raw.tool}
    for name in raw.tools:
        if name not in scripts:
            scripts[name] = ToolScript.demo(name)
    for script in scripts.values():
        script.options()
    return Scenario(
        name=path.stem,
        title=raw.title,
        start=_start(raw.session, raw.caller),
        caller=raw.caller,
        tools=tuple(scripts.values()),
        exchanges=tuple(exchanges),
        tags=frozenset(raw.tags),
    )


def _start(session: dict[str, Any], caller: Caller) -> protocol.Start:
    if "tools" in session:
        raise ScenarioError("tools are named by `tools` and [[tool]], not in [session]")
    if caller.echo is not None:
        # The echo is mixed into the microphone as it is; nothing has to be resampled then.
        session = {"output_sample_rate": protocol.INPUT_SAMPLE_RATE, **session}
        if session["output_sample_rate"] != protocol.INPUT_SAMPLE_RATE:
            raise ScenarioError(f"with an echo output_sample_rate has to be {protocol.INPUT_SAMPLE_RATE}")
        if caller.echo.delay_ms < _LEAST_ECHO_MS:
            raise ScenarioError(f"an echo comes after at least {_LEAST_ECHO_MS} ms")
    try:
        return msgspec.convert(session, protocol.Start)
    except msgspec.ValidationError as error:
        raise ScenarioError(f"[session]: {error}") from error


def _exchange(index: int, raw: _Exchange, caller: Caller, folder: Path) -> Exchange:
    kind = _kind(raw)
    if kind != "file" and (raw.cuts or raw.words or raw.part):
        raise ScenarioError("cuts, part and words belong to a file")
    if raw.part is not None and not 0 <= raw.part[0] < raw.part[1]:
        raise ScenarioError(f"part = {list(raw.part)} is no part of a file")
    _check_background(raw.background)
    cue = parse_cue(raw.at)
    if cue.after != "idle" and index == 0:
        raise ScenarioError(f"at = {raw.at!r}: nothing comes before the first exchange")
    expect, is_turn = raw.expect, kind in _TURNS
    if not is_turn and (expect.tools or expect.answer or expect.heard):
        raise ScenarioError(f"a {kind} is no turn: nothing can be expected of its answer")
    sentence, content, file = _content(kind, raw, folder)
    words = {"file": raw.words, "sound": "", "quiet": ""}.get(kind, sentence.text if sentence else content)
    return Exchange(
        index=index,
        kind=kind,
        cue=cue,
        sentence=sentence,
        content=content,
        file=file,
        words=words.lower(),
        part=raw.part,
        cuts=tuple(sorted(raw.cuts)),
        quiet_ms=raw.quiet_ms or 0,
        voice=raw.voice or caller.voice,
        rate=raw.rate or caller.rate,
        gain_db=raw.gain_db,
        background=raw.background,
        heard=_alternatives(expect.heard),
        tools=tuple(map(parse_call, expect.tools)),
        answer=_alternatives(expect.answer),
        answered=is_turn if expect.answered is None else expect.answered,
        interrupts=is_turn and cue.after == "agent" if expect.interrupts is None else expect.interrupts,
    )


def _alternatives(written: list[str | list[str]]) -> tuple[Alternatives, ...]:
    groups = tuple((one,) if isinstance(one, str) else tuple(one) for one in written)
    for group in groups:
        if not group or not all(map(plain_words, group)):
            raise ScenarioError(f"{list(group)!r}: nothing that could be looked for")
    return groups


def _kind(raw: _Exchange) -> Kind:
    given: dict[Kind, str | int | None] = {
        "say": raw.say,
        "file": raw.file,
        "backchannel": raw.backchannel,
        "sound": raw.sound,
        "text": raw.text,
        "dtmf": raw.dtmf,
        "quiet": raw.quiet_ms,
    }
    kinds = [kind for kind, value in given.items() if value is not None]
    if len(kinds) != 1:
        names = ", ".join("quiet_ms" if kind == "quiet" else kind for kind in given)
        raise ScenarioError(f"exactly one of {names} is needed, not {len(kinds)}")
    return kinds[0]


def _content(kind: Kind, raw: _Exchange, folder: Path) -> tuple[Sentence | None, str, Path | None]:
    """The sentence, name or text, and file of an exchange."""
    match kind:
        case "say" | "backchannel":
            return parse_sentence((raw.say if kind == "say" else raw.backchannel) or "", SOUNDS), "", None
        case "sound":
            if raw.sound not in SOUNDS:
                raise ScenarioError(f"no sound {raw.sound!r}; there are {', '.join(sorted(SOUNDS))}")
            return None, raw.sound, None
        case "file":
            return None, "", _find(raw.file or "", folder)
        case "quiet":
            if not 0 < (raw.quiet_ms or 0) <= _LONGEST_QUIET_MS:
                raise ScenarioError(f"quiet_ms is 1 to {_LONGEST_QUIET_MS}")
            return None, "", None
        case _:
            return None, (raw.text if kind == "text" else raw.dtmf) or "", None


def _find(written: str, folder: Path) -> Path:
    """A recording: beside the scenario, or, as ``models:NAME/FILE``, where the weights are."""
    among_weights = written.removeprefix(_AMONG_WEIGHTS)
    if among_weights == written:
        file = (folder / written).resolve()
        if not file.is_file():
            raise ScenarioError(f"{file}: no such file")
        return file
    file = (models_folder() / among_weights).resolve()
    if not file.is_file():
        name = among_weights.partition("/")[0]
        raise RecordingNotFoundError(f"{file}: no such file; bring it with `make fetch MODEL={name}`")
    return file


def _check_background(background: Background | None) -> None:
    if background is not None and background.sound not in LOOPS:
        raise ScenarioError(f"no background {background.sound!r}; there are {', '.join(sorted(LOOPS))}")


def parse_call(written: str) -> ExpectedCall:
    """Read ``set_timer(minutes=10, label='tea')``.

    Raises:
        ScenarioError: not a call with named, constant arguments.
    """
    problem = f"{written!r} is not a call such as set_timer(minutes=10, label='tea')"
    if not re.fullmatch(r"\w+\(.*\)", written, re.DOTALL):
        raise ScenarioError(problem)
    try:
        call = ast.parse(written, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ScenarioError(problem)
        arguments = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise ScenarioError(problem) from error
    return ExpectedCall(call.func.id, arguments)
