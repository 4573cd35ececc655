"""Functions that the agent may call on the client.

::

    @tool
    def get_price(item: Annotated[str, "What is being bought."]) -> dict:
        \"\"\"Get the price of an item.\"\"\"
        return {"euro": 3}

    table = ToolTable([get_price])

The name, the docstring's first line and the type hints are what the language model sees.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import importlib.util
import inspect
import logging
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, overload

import msgspec

from parley.errors import InvalidMessageError
from parley.protocol import (
    MAX_PROGRESS_CHARACTERS,
    MAX_TOOL_PROGRESS,
    Tool,
    ToolRequest,
    ToolResponse,
    encode,
)
from parley_client.errors import ToolDefinitionError
from parley_client.options import check_size

_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object", list: "array"}

DEFAULT_TIMEOUT_S = 10.0
BACKGROUND_TIMEOUT_S = 300.0
CANCEL_GRACE_S = 1.0
"""Time that a cancelled tool has for tidying up; after that it is not awaited."""
_LONGEST_FAILURE = 1000
_MARK = "__parley_tool__"


class _Reporter:
    """Sends what a running function reports, from any thread."""

    def __init__(self, call_id: str, send: Callable[[ToolResponse], None]) -> None:
        self._call_id = call_id
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._left = MAX_TOOL_PROGRESS

    def report(self, output: Any) -> None:
        if len(msgspec.json.encode(output).decode()) > MAX_PROGRESS_CHARACTERS:
            raise InvalidMessageError(f"progress may have {MAX_PROGRESS_CHARACTERS} characters of JSON")
        response = ToolResponse(call_id=self._call_id, output=output, final=False)
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._pass_on, response)

    def end(self) -> None:
        """The call is over: what its function still reports is dropped."""
        self._left = 0

    def _pass_on(self, response: ToolResponse) -> None:
        if self._left > 0:
            self._left -= 1
            self._send(response)


_reporter: contextvars.ContextVar[_Reporter | None] = contextvars.ContextVar("reporter", default=None)


def report_progress(output: Any) -> None:
    """Report how far the running tool is: any JSON value, which the call's client gets as ``tool_progress``.

    Outside of a call, and after 100 reports of one, it does nothing.

    Raises:
        InvalidMessageError: more than 4,000 characters of JSON.
    """
    reporter = _reporter.get()
    if reporter is not None:
        reporter.report(output)


def parameter_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The type of each parameter, with what ``Annotated`` adds.

    Raises:
        ToolDefinitionError: a parameter without a type, or with one that is not there, or one that has no
            name of its own.
    """
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ToolDefinitionError(f"{_name(function)}: the types of its parameters: {error}") from error
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ToolDefinitionError(f"{_name(function)}: parameter {name!r} cannot be given by name")
        if name not in hints:
            raise ToolDefinitionError(f"{_name(function)}: parameter {name!r} needs a type")
        found[name] = hints[name]
    return found


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The JSON schema of ``function``'s arguments object.

    Parameters may be ``str``, ``int``, ``float``, ``bool``, ``dict``, ``list[...]``,
    ``Literal[...]`` or any of them ``| None``. A string in ``Annotated[..., "text"]`` describes
    the parameter. Parameters without a default are required.

    Raises:
        ToolDefinitionError: a type that has no JSON counterpart here.
    """
    parameters = inspect.signature(function).parameters
    properties: dict[str, Any] = {}
    for name, hint in parameter_hints(function).items():
        try:
            properties[name] = _schema(hint)
        except TypeError as error:
            raise ToolDefinitionError(f"{_name(function)}: parameter {name!r}: {error}") from error
    required = [name for name in properties if parameters[name].default is inspect.Parameter.empty]
    return {"type": "object", "properties": properties, "required": required}


def _schema(hint: Any) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        texts = [extra for extra in hint.__metadata__ if isinstance(extra, str)]
        return {**_schema(arguments[0]), **({"description": texts[0]} if texts else {})}
    if origin in (Union, types.UnionType):
        kinds = [kind for kind in arguments if kind is not type(None)]
        if len(kinds) == 1:
            return _schema(kinds[0])
    if origin is Literal:
        kind = _NAMES.get(type(arguments[0]))
        if kind and all(type(value) is type(arguments[0]) for value in arguments):
            return {"type": kind, "enum": list(arguments)}
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0])}
    if origin is dict or (isinstance(hint, type) and hint in _NAMES):
        return {"type": _NAMES[origin or hint]}
    raise TypeError(f"{hint!r} has no JSON schema here; give the schema explicitly")


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
ResultT = TypeVar("ResultT")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ToolOptions:
    """Overrides of what a tool takes from its function."""

    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of the arguments; None: from the type hints."""
    timeout_s: float | None = None
    """Time limit (seconds). None: 10, in the background 300; the server has a limit of its own."""
    background: bool = False
    """Whether the conversation goes on while it runs."""
    announce: bool = True
    """In the background: whether the agent speaks by itself when it has returned."""
    cancel_on_interruption: bool | None = None
    """Whether an interruption of the agent cancels it. None: unless it is in the background."""


@overload
def tool(function: FunctionT, /) -> FunctionT: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    parameters: dict[str, Any] | None = None,
    timeout_s: float | None = None,
    background: bool = False,
    announce: bool = True,
    cancel_on_interruption: bool | None = None,
) -> Callable[[FunctionT], FunctionT]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Mark a function as a tool, plainly or with :class:`ToolOptions`' fields."""

    def mark(marked: FunctionT) -> FunctionT:
        setattr(marked, _MARK, ToolOptions(**options))
        return marked

    return mark(function) if function is not None else mark


def _options_of(function: Callable[..., Any]) -> ToolOptions:
    marked = getattr(function, _MARK, None)
    return marked if isinstance(marked, ToolOptions) else ToolOptions()


@dataclass(frozen=True)
class _Entry:
    function: Callable[..., Any]
    definition: Tool
    hints: dict[str, Any] | None
    timeout_s: float
    slots: asyncio.Semaphore


class ToolTable:
    """Tools by name. One table may serve many calls at once.

    Requests run in parallel, at most ``parallel`` at a time, and those in the background beside them, at most
    ``background`` at a time; each is answered when it is done.
    A function that is not ``async`` runs in a thread of its own. When its time is over, or its request
    was cancelled, a coroutine is cancelled. A thread cannot be stopped, and a coroutine may ignore it:
    they hold their place until they return, and their result is discarded.

    Args:
        functions: Functions, marked with :func:`tool` or not.
        parallel: How many run at once.
        background: How many of those that do not block.
        on_answer: Called with every answer.
    """

    def __init__(
        self,
        functions: Iterable[Callable[..., Any]] = (),
        *,
        parallel: int = 4,
        background: int = 32,
        on_answer: Callable[[ToolRequest, ToolResponse], None] | None = None,
    ) -> None:
        self._entries: dict[str, _Entry] = {}
        self._slots = asyncio.Semaphore(parallel)
        self._background_slots = asyncio.Semaphore(background)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.on_answer = on_answer
        for function in functions:
            self.add(function)

    def add(self, function: Callable[..., Any], options: ToolOptions | None = None) -> None:
        """Offer ``function``; one of the same name is replaced.

        Raises:
            ToolDefinitionError: no description, or types without a JSON schema.
        """
        options = options or _options_of(function)
        name = options.name or function.__name__
        description = options.description or (inspect.getdoc(function) or "").partition("\n")[0]
        if not description:
            raise ToolDefinitionError(f"tool {name!r} needs a docstring that describes it to the model")
        explicit, timeout_s = options.parameters, options.timeout_s
        if timeout_s is None:
            timeout_s = BACKGROUND_TIMEOUT_S if options.background else DEFAULT_TIMEOUT_S
        self._entries[name] = _Entry(
            function=function,
            definition=Tool(
                name=name,
                description=description,
                parameters=explicit or schema_of(function),
                mode="background" if options.background else "blocking",
                announce=options.announce,
                cancel_on_interruption=options.cancel_on_interruption,
            ),
            hints=None if explicit else parameter_hints(function),
            timeout_s=timeout_s,
            slots=self._background_slots if options.background else self._slots,
        )

    @property
    def definitions(self) -> list[Tool]:
        """For the language model."""
        return [entry.definition for entry in self._entries.values()]

    def longest_timeout_s(self, mode: str) -> float:
        """The longest time limit of the tools of a mode (seconds); 0: there is none."""
        limits = (entry.timeout_s for entry in self._entries.values() if entry.definition.mode == mode)
        return max(limits, default=0.0)

    async def answer(
        self, request: ToolRequest, on_progress: Callable[[ToolResponse], None] | None = None
    ) -> ToolResponse:
        """Run the tool; every failure becomes a response with ``is_error``.

        ``on_progress`` is called with each response that is not final: see :func:`report_progress`.
        """
        reporter = None if on_progress is None else _Reporter(request.call_id, on_progress)
        token = _reporter.set(reporter)
        try:
            response = await self._answer(request)
        finally:
            _reporter.reset(token)
            if reporter is not None:
                reporter.end()
        if self.on_answer is not None:
            try:
                self.on_answer(request, response)
            except Exception:  # noqa: BLE001 - the agent waits for the answer
                _log.exception("on_answer failed for tool %s", request.name)
        return response

    async def _answer(self, request: ToolRequest) -> ToolResponse:
        entry = self._entries.get(request.name)
        if entry is None:
            return _failure(request, f"there is no tool {request.name!r}")
        try:
            async with asyncio.timeout(entry.timeout_s):
                output = await self._run(entry, request.arguments)
            response = ToolResponse(call_id=request.call_id, output=output)
            check_size(encode(response))
        except TimeoutError:
            return _failure(request, f"no answer within {entry.timeout_s:g} s")
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises is its answer
            return _failure(request, str(error) or type(error).__name__)
        return response

    async def _run(self, entry: _Entry, given: dict[str, Any]) -> Any:
        arguments = given if entry.hints is None else _convert(given, entry.hints)
        await entry.slots.acquire()
        if inspect.iscoroutinefunction(entry.function):
            return await self._in_task(entry, arguments)
        name = f"tool-{entry.definition.name}"
        return await run_in_thread(partial(entry.function, **arguments), name, entry.slots.release)

    async def _in_task(self, entry: _Entry, arguments: dict[str, Any]) -> Any:
        """Run in a task of its own: one that ignores its cancellation must not hold up the call."""
        task = asyncio.get_running_loop().create_task(entry.function(**arguments))
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_task_done, entry.slots))
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.add_done_callback(partial(_log_late_failure, entry.definition.name))
            task.cancel()
            _, late = await asyncio.wait({task}, timeout=CANCEL_GRACE_S)
            if late:
                _log.warning("tool %s goes on although it was cancelled", entry.definition.name)
            raise
        if task.cancelled():
            raise RuntimeError("it has cancelled itself")
        return task.result()

    def _on_task_done(self, slots: asyncio.Semaphore, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        slots.release()


async def run_in_thread(
    function: Callable[[], ResultT], name: str, on_end: Callable[[], object] = lambda: None
) -> ResultT:
    """Run in a daemon thread: a function that hangs must not keep the program from ending.

    Args:
        function: its result or error is returned, unless the waiting task is cancelled.
        name: of the thread.
        on_end: called in the event loop when the function has ended, also after a cancellation.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[ResultT] = loop.create_future()

    def set_result(value: Any, error: BaseException | None) -> None:
        on_end()
        if result.done():
            return
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    def run() -> None:
        value: Any = None
        problem: BaseException | None = None
        try:
            value = function()
        except BaseException as error:  # noqa: BLE001 - handed to the waiting task
            # A future does not take StopIteration; others that are no Exception would end the event loop.
            passes = isinstance(error, Exception) and not isinstance(error, StopIteration)
            problem = error if passes else RuntimeError(f"{type(error).__name__}: {error}")
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(set_result, value, problem)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name=name, daemon=True).start()
    return await result


def _convert(given: dict[str, Any], hints: dict[str, Any]) -> dict[str, Any]:
    """Arguments of the parameters' types; ``"10"`` passes for an integer, as models write it."""
    unknown = given.keys() - hints.keys()
    if unknown:
        raise ValueError(f"unknown argument {min(unknown)!r}")
    try:
        return {name: msgspec.convert(value, hints[name], strict=False) for name, value in given.items()}
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def _failure(request: ToolRequest, why: str) -> ToolResponse:
    output = {"error": why[:_LONGEST_FAILURE]}
    return ToolResponse(call_id=request.call_id, output=output, is_error=True)


def _log_late_failure(name: str, task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("tool %s failed after it was cancelled", name, exc_info=error)


def load_tools(path: Path) -> list[Callable[..., Any]]:
    """The functions that a Python file marks with :func:`tool`, in their order.

    Raises:
        ToolDefinitionError: the file cannot be run or marks no function.
    """
    found = marked_functions(load_module(path))
    if not found:
        raise ToolDefinitionError(f"{path}: no function is marked with @tool")
    return found


def marked_functions(module: types.ModuleType) -> list[Callable[..., Any]]:
    """The functions of a module that :func:`tool` has marked, in their order."""
    return [value for value in vars(module).values() if callable(value) and hasattr(value, _MARK)]


def load_module(path: Path) -> types.ModuleType:
    """Run a Python file as a module.

    Raises:
        ToolDefinitionError: there is no such file, or it cannot be run.
    """
    if not path.exists():
        raise ToolDefinitionError(f"{path}: there is no such file")
    name = f"parley_tools_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ToolDefinitionError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # where dataclasses look up the types of their fields
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise ToolDefinitionError(
            f"{path}{_line_of(error, path)}: {type(error).__name__}: {error}"
        ) from error
    return module


def _line_of(error: BaseException, path: Path) -> str:
    """``, line 12``: where in the file the error arose; empty: not in the file."""
    if isinstance(error, SyntaxError):
        return ""  # its text has the line
    name = str(path.absolute())
    lines = [
        line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == name
    ]
    return f", line {lines[-1]}" if lines else ""
