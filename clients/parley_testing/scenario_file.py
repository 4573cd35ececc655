"""Scenario files. README.md beside this file says what may stand in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from parley import protocol
from parley.agents.toml_lines import find_line
from parley.agents.toml_reader import TomlError, convert_toml
from parley_testing.matching import pattern_of, plain_words
from parley_testing.scenario import (
    DEMO_NAMES,
    Alternatives,
    Answered,
    Background,
    Caller,
    Criteria,
    Exchange,
    ExpectedCall,
    Kind,
    Persona,
    RecordingNotFoundError,
    Scenario,
    ScenarioError,
    Sentence,
    ToolScript,
    Wordings,
    parse_cue,
    parse_sentence,
)
from parley_testing.sounds import LOOPS, SOUNDS
from parley_testing.voices import models_folder

_TURNS = ("say", "file", "text", "dtmf")
_LEAST_ECHO_MS = 50  # the microphone's chunk, and some
_LONGEST_QUIET_MS = 60_000
_AMONG_WEIGHTS = "models:"
StructT = TypeVar("StructT", bound=msgspec.Struct)


class _Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to come of an exchange; what is left out follows from its kind."""

    heard: Wordings = []
    """What the agent has to understand; a list holds wordings, and one is enough."""
    tools: list[str] | Literal["any"] = []
    """Calls such as ``set_timer(minutes=10, label='tea')``, in their order; ``any``: they do not matter."""
    answer: Wordings = []
    """Each has to be in the answer; likewise."""
    never: Wordings = []
    """None of them may be in the answer."""
    step: str = ""
    """Name of the step in which the conversation is before the next exchange."""
    decisions: dict[str, str] = {}
    """Answers to questions of ``decisions``, by name."""
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


class _Call(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    title: str = ""
    exchange: list[_Exchange] = []
    tags: list[str] = []
    session: dict[str, Any] = {}
    caller: Caller = Caller()
    tools: list[str] | None = None
    tool: list[ToolScript] = []
    persona: Persona | None = None
    expect: Criteria = Criteria()


class _File(_Call, kw_only=True, forbid_unknown_fields=True):
    """One call; with ``scenario`` several, which have the rest of the file in common."""

    scenario: list[_Call] = []


def load_scenarios(
    paths: list[Path],
    on_left_out: Callable[[ScenarioError], None] | None = None,
    *,
    own_agent: bool = False,
) -> list[Scenario]:
    """Read scenario files, and all of those in folders.

    Args:
        paths: files and folders.
        on_left_out: called for those in folders whose recordings have not been fetched; None:
            that is an error.
        own_agent: as of :func:`read_file`.

    Raises:
        ScenarioError: a file is missing or not valid, or there is none; the message says which and where.
    """
    scenarios: list[Scenario] = []
    for path in paths:
        if not path.is_dir():
            scenarios += read_file(path, own_agent=own_agent)
            continue
        for file in sorted(path.glob("*.toml")):
            try:
                scenarios += read_file(file, own_agent=own_agent)
            except RecordingNotFoundError as error:
                if on_left_out is None:
                    raise
                on_left_out(error)
    if not scenarios:
        raise ScenarioError(f"no scenarios in {', '.join(map(str, paths))}")
    return scenarios


def read_file(path: Path, *, own_agent: bool = False) -> list[Scenario]:
    """Read the scenarios of a file.

    Args:
        path: of the file.
        own_agent: they are of an agent with tools of its own: none of the client's samples is offered
            unless it is named, and a [[tool]] may be one of the agent's.

    Raises:
        ScenarioError: the file is missing or not valid; the message says where.
    """
    try:
        text = path.read_text("utf-8")
        raw = convert_toml(text, _File)
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{path}: {error}") from error
    except TomlError as error:
        raise ScenarioError(f"{path}:{error.line}: {error}") from error
    return _Reader(path, text, own_agent=own_agent).read(raw)


class _Reader:
    """Makes the scenarios of a file, and errors that name its lines."""

    def __init__(self, path: Path, text: str, *, own_agent: bool) -> None:
        self._path = path
        self._text = text
        self._own_agent = own_agent
        self._at: tuple[str | int, ...] = ()
        """Of what is being read."""

    def read(self, raw: _File) -> list[Scenario]:
        """All scenarios."""
        try:
            return list(self._scenarios(raw))
        except ScenarioError as error:
            raise type(error)(f"{self._path}:{find_line(self._text, self._at)}: {error}") from error

    def _scenarios(self, raw: _File) -> Iterator[Scenario]:
        if not raw.scenario:
            yield self._scenario((), raw, raw.title, self._path.stem)
        elif raw.exchange:
            self._at = ("exchange",)
            raise ScenarioError("with a [[scenario]] every [[exchange]] has to belong to one")
        titles: set[str] = set()
        for number, one in enumerate(raw.scenario):
            self._at = ("scenario", number)
            if one.title in titles:
                raise ScenarioError(f"a second scenario has the title {one.title!r}")
            titles.add(one.title)
            yield self._scenario(("scenario", number), _join(raw, one), one.title, one.title)

    def _scenario(self, at: tuple[str | int, ...], raw: _Call, title: str, name: str) -> Scenario:
        self._at = at
        if not title:
            raise ScenarioError("a scenario needs a title")
        if not raw.exchange and raw.persona is None:
            raise ScenarioError("at least one [[exchange]] is needed, or a persona")
        self._at = (*at, "caller")
        _check_background(raw.caller.background)
        exchanges = []
        for index, one in enumerate(raw.exchange):
            self._at = (*at, "exchange", index)
            try:
                exchanges.append(_exchange(index, one, raw.caller, self._path.parent))
            except ScenarioError as error:
                raise type(error)(f"exchange {index + 1}: {error}") from error
        self._at = (*at, "tool")
        tools = self._tools(raw)
        self._at = (*at, "session")
        start = _start(raw.session, raw.caller)
        self._at = (*at, "expect")
        for call in raw.expect.tools:
            parse_call(call)
        parse_wordings([*raw.expect.said, *raw.expect.never_said])
        return Scenario(
            name=name,
            title=title,
            start=start,
            caller=raw.caller,
            tools=tools,
            exchanges=tuple(exchanges),
            tags=frozenset(raw.tags),
            file=self._path,
            persona=raw.persona,
            expect=raw.expect,
        )

    def _tools(self, raw: _Call) -> tuple[ToolScript, ...]:
        scripts = {script.name: script for script in raw.tool}
        default = () if self._own_agent else DEMO_NAMES
        for name in default if raw.tools is None else raw.tools:
            if name not in scripts:
                scripts[name] = ToolScript.demo(name)
        for script in scripts.values():
            if not self._own_agent and not (script.definition.description and script.definition.parameters):
                raise ScenarioError(f"tool {script.name!r} needs a description and parameters")
        return tuple(scripts.values())


def _join(shared: _File, one: _Call) -> _Call:
    """A scenario with what all of its file have in common; its own values win."""
    return _Call(
        title=one.title,
        exchange=one.exchange,
        tags=[*shared.tags, *one.tags],
        session={**shared.session, **one.session},
        caller=_fill(one.caller, shared.caller),
        tools=shared.tools if one.tools is None else one.tools,
        tool=[*shared.tool, *one.tool],
        persona=one.persona or (None if one.exchange else shared.persona),
        expect=_fill(one.expect, shared.expect),
    )


def _fill(own: StructT, shared: StructT) -> StructT:
    """``own``, with the values of ``shared`` for fields that have their default."""
    default = type(own)()
    names = [field.name for field in msgspec.structs.fields(own)]
    values = {name: getattr(shared, name) for name in names if getattr(own, name) == getattr(default, name)}
    return msgspec.structs.replace(own, **values)


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
    if not is_turn and (expect.tools or expect.answer or expect.heard or expect.never or expect.decisions):
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
        heard=parse_wordings(expect.heard),
        tools=None if expect.tools == "any" else tuple(map(parse_call, expect.tools)),
        answer=parse_wordings(expect.answer),
        never=parse_wordings(expect.never),
        step=expect.step,
        decisions=expect.decisions,
        answered=is_turn if expect.answered is None else expect.answered,
        interrupts=is_turn and cue.after == "agent" if expect.interrupts is None else expect.interrupts,
    )


def parse_wordings(written: Wordings) -> tuple[Alternatives, ...]:
    """Read what has to be in a text, or must not be.

    Raises:
        ScenarioError: no words, or not a regular expression.
    """
    groups = tuple((one,) if isinstance(one, str) else tuple(one) for one in written)
    for group in groups:
        try:
            is_usable = bool(group) and all(pattern_of(one) or plain_words(one) for one in group)
        except re.error as error:
            raise ScenarioError(f"{list(group)!r}: not a regular expression ({error})") from error
        if not is_usable:
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

    ``set_timer(..., minutes=10)`` may have further arguments, and ``label=re('tea.*')`` has to match a whole
    value.

    Raises:
        ScenarioError: not a call with named, constant arguments.
    """
    problem = f"{written!r} is not a call such as set_timer(minutes=10, label='tea')"
    if not re.fullmatch(r"\w+\(.*\)", written, re.DOTALL):
        raise ScenarioError(problem)
    try:
        call = ast.parse(written, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ScenarioError(problem)
        others = [ast.literal_eval(one) for one in call.args]
        if others not in ([], [...]):
            raise ScenarioError(problem)
        arguments = {str(one.arg): _value(one.value) for one in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise ScenarioError(problem) from error
    except re.error as error:
        raise ScenarioError(f"{written!r}: not a regular expression ({error})") from error
    return ExpectedCall(call.func.id, arguments, is_partial=bool(others))


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "re":
        (pattern,) = map(ast.literal_eval, node.args)
        return re.compile(str(pattern), re.IGNORECASE)
    return ast.literal_eval(node)
