from __future__ import annotations

import asyncio
import json
import math

import msgspec
import pytest
from fake_engines import Letters, ScriptedEngine, WordTokenizer
from recorded_spans import PARENT, Spans, traceparent

from parley.chat import ChatMessage, ToolCall
from parley.errors import (
    ContextTooLongError,
    DeadlineExceededError,
    InferenceError,
    InvalidInputError,
    InvalidMessageError,
    InvalidModelOutputError,
    ModelUnavailableError,
    OverloadedError,
)
from parley.llm.engine import EngineTimes, Progress
from parley.llm.messages import (
    Completed,
    GenerateRequest,
    Priority,
    Question,
    Sampling,
    TextDelta,
    ToolCalled,
    TurnEnd,
    choose_sampling,
)
from parley.llm.prompt import PromptBuilder
from parley.llm.python_calls.format import CallGrammar, PythonFormat
from parley.llm.python_calls.rendering import PythonRendering
from parley.llm.replies import HermesFormat
from parley.llm.service import ChatService
from parley.protocol import SamplingOptions, Tool

CALL = '<tool_call>{"name": "get_time", "arguments": {"city": "Paris"}}</tool_call>'


def service(engine, **options):
    return ChatService(engine, PromptBuilder(WordTokenizer(), 1_000), **options)


def request(request_id="r", text="what time is it", **sampling):
    message = ChatMessage(role="user", content=text)
    return GenerateRequest(request_id=request_id, messages=[message], sampling=Sampling(**sampling))


async def collect(generator):
    return [event async for event in generator]


async def test_requests_share_the_prefix_cache_by_salt():
    engine = ScriptedEngine(Progress("Hi.", 1, finish_reason="stop"))
    chat = service(engine)
    for number, salt in enumerate(("a", "a", "", "")):
        await collect(chat.generate(msgspec.structs.replace(request(str(number)), cache_salt=salt)))
    first, second, third, fourth = (sent.cache_salt for sent in engine.requests)
    assert first == second == "a"
    assert len({"", first, third, fourth}) == 4


async def test_usage_of_an_aborted_answer_has_its_cached_tokens():
    engine = ScriptedEngine(Progress("It's ", 2, 3), Progress(finish_reason="abort"))
    *_, last = await collect(service(engine).generate(request()))
    assert last == Completed(finish_reason="abort", prompt_tokens=4, cached_tokens=3, completion_tokens=2)


async def test_text_then_usage():
    engine = ScriptedEngine(
        Progress("It's ", 2, 3), Progress("ten.", 1, 3), Progress("", 1, 3, finish_reason="stop")
    )
    events = await collect(
        service(engine).generate(request(temperature=0.5, top_p=0.9, seed=7, max_tokens=9))
    )
    assert events == [
        TextDelta(text="It's"),
        TextDelta(text=" ten."),
        Completed(finish_reason="stop", prompt_tokens=4, cached_tokens=3, completion_tokens=4),
    ]
    sent = engine.requests[0]
    assert (sent.temperature, sent.top_p, sent.seed, sent.max_tokens) == (0.5, 0.9, 7, 9)
    assert list(sent.prompt) == [0, 1, 2, 3]


async def test_tool_calls_have_ids_of_their_own():
    engine = ScriptedEngine(Progress(f"One moment. {CALL}{CALL}", 9, finish_reason="stop"))
    events = await collect(service(engine).generate(request("r1")))
    calls = [
        ToolCalled(call=ToolCall(id=f"r1-{n}", name="get_time", arguments={"city": "Paris"}))
        for n in range(2)
    ]
    assert events[:-1] == [TextDelta(text="One moment."), *calls]
    assert events[-1].finish_reason == "tool_calls"


async def test_cut_off_answer_has_the_reason_length():
    engine = ScriptedEngine(Progress("It's <to", 3, finish_reason="length"))
    events = await collect(service(engine).generate(request()))
    assert [e.text for e in events[:-1]] == ["It's", " <to"]
    assert events[-1].finish_reason == "length"


async def test_a_call_that_cannot_be_read_fails_the_request_and_frees_the_engine():
    engine = ScriptedEngine(Progress("<tool_call>{</tool_call>", 3), None)
    with pytest.raises(InferenceError, match="cannot be read"):
        await collect(service(engine).generate(request()))
    assert engine.closed == ["r"]


async def test_engine_failures_are_passed_on():
    chat = service(ScriptedEngine(Progress("It", 1), ModelUnavailableError("dead")))
    with pytest.raises(ModelUnavailableError):
        await collect(chat.generate(request()))
    assert chat.active == 0


async def test_an_answer_without_an_end_is_an_error():
    with pytest.raises(InferenceError, match="without a reason"):
        await collect(service(ScriptedEngine(Progress("It", 1))).generate(request()))


class Guided(HermesFormat):
    """Has a grammar for every answer."""

    def begin(self, tools, prompt, **how):
        reply = super().begin(tools, prompt, **how)
        reply.structural_tag = "a grammar"
        return reply

    def begin_call(self, tools, prompt, name):
        reply = super().begin_call(tools, prompt, name)
        reply.structural_tag = f"a call of {name}"
        return reply


class TestGuidance:
    async def test_engine_gets_the_grammar(self):
        engine = ScriptedEngine(Progress("Hi.", 1, finish_reason="stop"))
        await collect(service(engine, replies=Guided()).generate(request()))
        assert engine.requests[0].structural_tag == "a grammar"

    @pytest.mark.parametrize(
        "refusal", [InvalidInputError("no such grammar"), InferenceError("not compiled")]
    )
    async def test_an_engine_that_cannot_guide_answers_without(self, refusal, caplog):
        engine = ScriptedEngine(Progress("Hi.", 1, finish_reason="stop"))
        engine.refusal = refusal
        events = await collect(service(engine, replies=Guided()).generate(request()))
        assert events[0] == TextDelta(text="Hi.")
        assert [asked.structural_tag for asked in engine.requests] == ["a grammar", None]
        assert "not guided" in caplog.text

    @pytest.mark.parametrize("failure", [ModelUnavailableError("gone"), DeadlineExceededError("late")])
    async def test_an_engine_that_is_gone_is_not_asked_again(self, failure):
        engine = ScriptedEngine(failure)
        with pytest.raises(type(failure)):
            await collect(service(engine, replies=Guided()).generate(request()))
        assert len(engine.requests) == 1

    async def test_later_failure_is_an_error(self):
        engine = ScriptedEngine(Progress("It", 1), InferenceError("broken"))
        with pytest.raises(InferenceError, match="broken"):
            await collect(service(engine, replies=Guided()).generate(request()))
        assert len(engine.requests) == 1


def forced(name="*", tools=("get_time",), **changes):
    offered = [Tool(name=one) for one in tools]
    return msgspec.structs.replace(request(), tools=offered, must_call=name, **changes)


class TestForcedCall:
    @pytest.mark.parametrize("name", ["*", "get_time"])
    async def test_answer_is_the_call(self, name):
        engine = ScriptedEngine(Progress(CALL, 1, finish_reason="stop"))
        called, completed = await collect(service(engine, replies=Guided()).generate(forced(name)))
        assert called.call.name == "get_time"
        assert completed.finish_reason == "tool_calls"
        assert engine.requests[0].structural_tag == f"a call of {name}"

    @pytest.mark.parametrize("wanted", [forced("other"), forced(tools=()), forced(prefix="It")])
    async def test_call_that_cannot_be_made_is_refused(self, wanted):
        engine = ScriptedEngine()
        with pytest.raises(InvalidMessageError, match="must be made"):
            await collect(service(engine, replies=Guided()).generate(wanted))
        assert engine.requests == []

    @pytest.mark.parametrize("replies", [HermesFormat(), PythonFormat()])
    async def test_without_guidance_it_is_refused(self, replies):
        with pytest.raises(InvalidMessageError, match="cannot be forced"):
            await collect(service(ScriptedEngine(), replies=replies).generate(forced()))

    async def test_grammar_that_the_engine_refuses_is_an_error(self):
        engine = ScriptedEngine(Progress("Hi.", 1, finish_reason="stop"))
        engine.refusal = InferenceError("not compiled")
        with pytest.raises(InferenceError, match="not compiled"):
            await collect(service(engine, replies=Guided()).generate(forced()))
        assert len(engine.requests) == 1

    @pytest.mark.parametrize("reason", ["stop", "length"])
    async def test_answer_without_the_call_is_an_error(self, reason):
        engine = ScriptedEngine(Progress("<tool", 1, finish_reason=reason))
        with pytest.raises(InvalidModelOutputError, match="before its tool call"):
            await collect(service(engine, replies=Guided()).generate(forced()))


SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


def as_json(schema=SCHEMA, **changes):
    return msgspec.structs.replace(request(), json_schema=schema, **changes)


class TestJson:
    async def test_schemas_as_programs_write_them_are_accepted(self):
        optional = {"anyOf": [{"$ref": "#/$defs/not"}, {"type": "null"}], "default": None, "title": "If"}
        named = {"type": "object", "properties": {"not": optional, "required": {"enum": ["not"]}}}
        schema = {**named, "$defs": {"not": {"type": "string", "enum": ["a"]}}, "required": ["not"]}
        engine = ScriptedEngine(Progress("{}", 1, finish_reason="stop"))
        await collect(service(engine).generate(as_json(schema)))
        assert json.loads(engine.requests[0].structural_tag)["format"]["json_schema"] == schema

    @pytest.mark.parametrize("replies", [HermesFormat(), PythonFormat()])
    async def test_answer_is_json_by_the_grammar_of_its_schema(self, replies):
        engine = ScriptedEngine(Progress(' {"ok": ', 1), Progress("true}", 1, finish_reason="stop"))
        *texts, completed = await collect(service(engine, replies=replies).generate(as_json()))
        assert "".join(text.text for text in texts) == ' {"ok": true}'
        assert completed.finish_reason == "stop"
        assert json.loads(engine.requests[0].structural_tag)["format"]["json_schema"] == SCHEMA

    @pytest.mark.parametrize(
        "wanted",
        [
            as_json({"type": "string", "pattern": "a+"}),
            as_json({"type": "string", "maxLength": 50}),
            as_json({"enum": ["x" * 20_000]}),
            as_json({"enum": list(range(4_000))}),
            as_json({"type": "array", "items": {"type": "integer", "multipleOf": 3}}),
            as_json({"type": "object", "properties": {"a": {"not": {"const": 1}}}}),
            as_json({"allOf": [{"type": "string"}, {"minLength": 1}]}),
            as_json({"anyOf": [{"$ref": "https://example.com/schema"}]}),
            as_json({"anyOf": [{"type": "object"}], "properties": {"a": {}}}),
            as_json({"type": "object", "properties": {"a": {}}, "required": ["b"]}),
            as_json({"type": "object", "properties": 5, "required": [["a"]]}),
            as_json(tools=[Tool(name="stop")]),
            as_json(prefix="It"),
        ],
    )
    async def test_what_a_grammar_cannot_enforce_is_refused(self, wanted):
        engine = ScriptedEngine()
        with pytest.raises(InvalidMessageError):
            await collect(service(engine).generate(wanted))
        assert engine.requests == []

    async def test_grammar_that_the_engine_refuses_is_an_error(self):
        engine = ScriptedEngine(Progress("Hi.", 1, finish_reason="stop"))
        engine.refusal = InvalidInputError("no such grammar")
        with pytest.raises(InvalidInputError, match="no such grammar"):
            await collect(service(engine).generate(as_json()))


async def test_priority_reaches_the_engine():
    engine = ScriptedEngine(Progress("Hi.", 1, finish_reason="stop"))
    urgent = request()
    await collect(service(engine).generate(urgent))
    await collect(service(engine).generate(msgspec.structs.replace(urgent, priority=Priority.BACKGROUND)))
    assert [asked.priority for asked in engine.requests] == [0, 3]


class TestAbort:
    async def test_while_running(self):
        engine = ScriptedEngine(Progress("It's", 1), None)
        chat = service(engine)
        stream = chat.generate(request())
        assert await anext(stream) == TextDelta(text="It's")
        await chat.abort("r")
        assert [event async for event in stream] == [
            Completed(finish_reason="abort", prompt_tokens=4, completion_tokens=1)
        ]
        assert engine.aborted == ["r"]
        assert chat.active == 0

    async def test_before_the_engine_is_asked(self):
        engine = ScriptedEngine(Progress("It's", 1, finish_reason="stop"))
        chat = letters(engine)
        stream = chat.generate(reading())
        assert isinstance(await anext(stream), TurnEnd)
        await chat.abort("r")
        assert (await collect(stream))[-1].finish_reason == "abort"
        assert engine.requests == []

    async def test_while_the_engine_refuses_the_grammar(self):
        engine = ScriptedEngine()
        chat = service(engine, replies=Guided())

        async def refuse(asked):
            engine.requests.append(asked)
            await chat.abort("r")
            raise InvalidInputError("no such grammar")
            yield

        engine.generate = refuse
        assert (await collect(chat.generate(request())))[-1].finish_reason == "abort"
        assert len(engine.requests) == 1

    async def test_before_the_request_arrives(self):
        engine = ScriptedEngine(Progress("It's", 1, finish_reason="stop"))
        chat = service(engine)
        await chat.abort("r")
        assert await collect(chat.generate(request())) == [Completed(finish_reason="abort")]
        assert engine.requests == []
        # Only once: the id may be used again.
        assert len(await collect(chat.generate(request()))) == 2

    async def test_abort_of_an_unknown_request_does_nothing(self):
        engine = ScriptedEngine(Progress("It's", 1, finish_reason="stop"))
        chat = service(engine)
        await chat.abort("other")
        assert engine.aborted == []
        assert len(await collect(chat.generate(request()))) == 2

    async def test_an_old_abort_is_forgotten(self):
        now = [0.0]
        chat = service(ScriptedEngine(Progress("It's", 1, finish_reason="stop")), clock=lambda: now[0])
        await chat.abort("r")
        now[0] = 60.0
        assert len(await collect(chat.generate(request()))) == 2

    async def test_closing_early_frees_the_engine(self):
        engine = ScriptedEngine(Progress("It's", 1), None)
        chat = service(engine)
        stream = chat.generate(request())
        await anext(stream)
        await stream.aclose()
        assert engine.closed == ["r"]
        assert chat.active == 0


class TestAdmission:
    async def test_an_id_in_use_is_refused_and_the_first_goes_on(self):
        engine = ScriptedEngine(None, Progress("It's", 1, finish_reason="stop"))
        chat = service(engine)
        first = asyncio.ensure_future(collect(chat.generate(request())))
        await engine.running.wait()
        with pytest.raises(InvalidMessageError, match="in use"):
            await collect(chat.generate(request()))
        engine.go.set()
        assert len(await first) == 2

    async def test_too_many_requests(self):
        engine = ScriptedEngine(None, Progress("It's", 1, finish_reason="stop"))
        chat = service(engine, max_requests=1)
        first = asyncio.ensure_future(collect(chat.generate(request("a"))))
        await engine.running.wait()
        with pytest.raises(OverloadedError):
            await collect(chat.generate(request("b")))
        engine.go.set()
        await first
        assert len(await collect(chat.generate(request("b")))) == 2

    @pytest.mark.parametrize(
        ("sampling", "named"),
        [
            ({"temperature": -0.1}, "temperature"),
            ({"temperature": float("nan")}, "temperature"),
            ({"top_p": 0.0}, "top_p"),
            ({"top_p": 1.5}, "top_p"),
            ({"max_tokens": 0}, "max_tokens"),
            ({"seed": -1}, "seed"),
        ],
    )
    async def test_sampling_out_of_range(self, sampling, named):
        chat = service(ScriptedEngine())
        with pytest.raises(InvalidMessageError, match=named):
            await collect(chat.generate(request(**sampling)))
        assert chat.active == 0

    async def test_empty_id(self):
        with pytest.raises(InvalidMessageError):
            await collect(service(ScriptedEngine()).generate(request("")))

    async def test_too_long_a_conversation(self):
        chat = service(ScriptedEngine())
        with pytest.raises(ContextTooLongError):
            await collect(chat.generate(request(text="word " * 2_000)))
        assert chat.active == 0


DEFAULT = Sampling(temperature=0.7, top_p=0.8, max_tokens=256, seed=3)


def test_omitted_sampling_is_the_servers():
    assert choose_sampling(SamplingOptions(), DEFAULT) == DEFAULT


def test_every_option_replaces_the_servers_choice():
    options = SamplingOptions(temperature=0.0, top_p=1.0, max_tokens=1)
    assert choose_sampling(options, DEFAULT) == Sampling(temperature=0.0, top_p=1.0, max_tokens=1, seed=3)
    assert choose_sampling(SamplingOptions(max_tokens=256), DEFAULT).max_tokens == 256
    assert choose_sampling(SamplingOptions(temperature=2.0), DEFAULT).temperature == 2.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("max_tokens", 0),
        ("max_tokens", 257),
    ],
)
def test_values_out_of_range_are_named(field, value):
    with pytest.raises(InvalidMessageError, match=rf"^sampling\.{field} is {value}; it must be "):
        choose_sampling(SamplingOptions(**{field: value}), DEFAULT)


async def test_the_stages_of_a_request_are_spans():
    spans = Spans()
    engine = ScriptedEngine(
        Progress("Ten.", 2, 3, times=EngineTimes(1.0, 1.5, 2.5, 2.5)),
        Progress("", 1, 3, finish_reason="stop", times=EngineTimes(1.0, 1.5, 2.5, 4.5, preemptions=1)),
    )
    with spans.tracing.begin("generate qwen3", PARENT, alone=False) as span:
        await collect(service(engine).generate(request(max_tokens=9), span))
    whole = spans.one("generate qwen3")
    assert {one.name: round((one.end_time - one.start_time) / 1e9, 3) for one in spans.below(whole)} == {
        "queue": 0.5,
        "prefill": 1.0,
        "decode": 2.0,
    }
    assert whole.attributes["gen_ai.usage.output_tokens"] == 3
    assert whole.attributes["gen_ai.usage.cache_read.input_tokens"] == 3
    assert whole.attributes["gen_ai.response.finish_reason"] == "stop"
    assert whole.attributes["parley.preemptions"] == 1
    assert engine.requests[0].traceparent == traceparent(whole)


async def test_a_request_that_is_aborted_has_the_stages_so_far():
    spans = Spans()
    engine = ScriptedEngine(Progress("Ten.", 2, times=EngineTimes(1.0, 1.5, 2.5, 2.5)), None)
    chat = service(engine)
    with spans.tracing.begin("generate qwen3", PARENT, alone=False) as span:
        answer = chat.generate(request(), span)
        await anext(answer)
        await chat.abort("r")
        await collect(answer)
    assert spans.one("prefill").parent.span_id == spans.one("generate qwen3").context.span_id
    assert spans.one("generate qwen3").attributes["gen_ai.response.finish_reason"] == "abort"


async def test_an_answer_goes_on_behind_its_beginning():
    engine = ScriptedEngine(Progress(" ten.", 2), Progress(f" {CALL}", 5, finish_reason="stop"))
    begun = msgspec.structs.replace(request(), prefix="It is")
    events = await collect(service(engine).generate(begun))
    assert events[0] == TextDelta(text=" ten.")
    assert isinstance(events[1], ToolCalled)
    assert list(engine.requests[0].prompt)[-2:] == ["It", "is"]


async def test_a_model_that_cannot_go_on_is_not_asked():
    replies = HermesFormat()
    replies.continues = False
    engine = ScriptedEngine()
    begun = msgspec.structs.replace(request(), prefix="It is")
    assert await collect(service(engine, replies=replies).generate(begun)) == [
        Completed(finish_reason="length")
    ]
    assert engine.requests == []


async def test_an_answer_that_is_complete_has_no_text():
    engine = ScriptedEngine(Progress("", 1, finish_reason="stop"))
    (completed,) = await collect(service(engine).generate(msgspec.structs.replace(request(), prefix="Ten.")))
    assert completed.finish_reason == "stop"


class Scores:
    """Gives each prompt the log probabilities that are next; ``None`` waits for an abort."""

    def __init__(self, *logprobs):
        self.logprobs = list(logprobs)
        self.requests, self.running = [], 0
        self.most = 0
        self.aborted = asyncio.Event()

    async def generate(self, request):
        self.requests.append(request)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0.01)
            values = self.logprobs.pop(0)
            if values is None:
                await self.aborted.wait()
                yield Progress(finish_reason="abort")
                return
            if isinstance(values, Exception):
                raise values
            found = dict(zip(request.scored, values, strict=False))
            inside = {"prompt_logprobs": (found,)} if request.scored_at else {"logprobs": found}
            yield Progress("x", 1, 2, "length", **inside)
        finally:
            self.running -= 1

    async def abort(self, request_id):
        self.aborted.set()


def questions(name="r", count=2):
    asked = [Question(text="Is it late?", choices=["Yes", "No"])] * count
    return msgspec.structs.replace(request(name), questions=asked, priority=Priority.BACKGROUND)


async def test_questions_are_compared_in_one_batch():
    engine = Scores((-1.0, -2.0), (-9.0, -9.0))
    choices, completed = await collect(service(engine).generate(questions()))
    assert choices.probabilities == [pytest.approx([0.731, 0.269], abs=0.001), [0.5, 0.5]]
    assert (completed.finish_reason, completed.cached_tokens, completed.completion_tokens) == ("stop", 4, 2)
    assert engine.most == 2
    assert {(one.max_tokens, one.priority, len(one.scored)) for one in engine.requests} == {(1, 3, 2)}
    assert len({one.request_id for one in engine.requests}) == 2


@pytest.mark.parametrize(
    "logprobs", [(), (-1.0,), (float("nan"), -1.0), (float("-inf"), float("-inf")), (float("inf"), -1.0)]
)
async def test_log_probabilities_that_are_none_give_no_probabilities(logprobs):
    choices, _ = await collect(service(Scores(logprobs)).generate(questions(count=1)))
    assert choices.probabilities == [[]]


def letters(engine, **options):
    return ChatService(engine, PromptBuilder(Letters(), 1_000), **options)


def turn_end():
    return msgspec.structs.replace(request(), turn_end=True, priority=Priority.SPECULATION)


async def test_the_end_of_a_turn_has_the_probability_of_all_that_ends_a_sentence():
    engine = Scores([math.log(0.2), math.log(0.5), -20.0, -math.inf])
    ending, completed = await collect(letters(engine).generate(turn_end()))
    assert ending == TurnEnd(probability=pytest.approx(0.7))
    assert (completed.finish_reason, completed.cached_tokens, completed.completion_tokens) == ("stop", 2, 1)
    (asked,) = engine.requests
    assert (asked.max_tokens, asked.priority) == (1, Priority.SPECULATION)
    assert "".join(map(chr, asked.prompt)) == "what time is it"
    assert "".join(map(chr, asked.scored)) == "!.?|"


@pytest.mark.parametrize("logprobs", [(), (-1.0,), (math.nan, -1.0, -1.0, -1.0)])
async def test_without_log_probabilities_the_end_of_a_turn_fails(logprobs):
    with pytest.raises(InferenceError, match="no log probabilities"):
        await collect(letters(Scores(logprobs)).generate(turn_end()))


async def test_the_end_of_a_turn_can_be_aborted():
    chat = letters(Scores(None))
    running = asyncio.create_task(collect(chat.generate(turn_end())))
    await asyncio.sleep(0.05)
    await chat.abort("r")
    assert await running == [Completed(finish_reason="abort")]


def reading(text="what time is it?"):
    return msgspec.structs.replace(request(text=text), reads_turn=True)


async def test_an_answer_begins_with_the_end_of_the_turn_if_it_is_in_its_prompt():
    engine = Scores([math.log(0.2), math.log(0.5), -20.0, -math.inf])
    ending, text, completed = await collect(letters(engine, scores_prompts=True).generate(reading()))
    assert ending == TurnEnd(probability=pytest.approx(0.7))
    assert (text, completed.completion_tokens) == (TextDelta(text="x"), 1)
    (asked,) = engine.requests
    assert "".join(map(chr, asked.prompt)) == "what time is it?|"
    assert (asked.scored_at, "".join(map(chr, asked.scored))) == ((15,), "!.?|")


@pytest.mark.parametrize("logprobs", [(), (-1.0,), (math.nan, -1.0, -1.0, -1.0)])
async def test_an_answer_without_log_probabilities_of_its_prompt_is_an_answer(logprobs):
    """As where the place is in the prefix cache."""
    events = await collect(letters(Scores(logprobs), scores_prompts=True).generate(reading()))
    assert events[0] == TurnEnd(probability=None), "a call would be the next event, and comes late"
    assert [type(event) for event in events[1:]] == [TextDelta, Completed]


@pytest.mark.parametrize(("able", "text"), [(False, "what time is it?"), (True, "...")])
async def test_that_an_answer_will_not_say_the_end_of_the_turn_is_known_at_once(able, text):
    engine = ScriptedEngine(None)
    stream = letters(engine, scores_prompts=able).generate(reading(text))
    assert await anext(stream) == TurnEnd(probability=None)
    assert engine.requests == [], "before the engine is asked"
    await stream.aclose()


class Choosing(ScriptedEngine):
    """Writes what was begun; ``likely`` has the log probabilities of letters as the first of the answer."""

    def __init__(self, likely=None):
        super().__init__()
        self.likely = {ord(one): value for one, value in (likely or {}).items()}

    async def generate(self, request):
        self.requests.append(request)
        ends = dict.fromkeys(map(ord, "!.?|"), math.log(0.2))
        scores = tuple([ends, self.likely][-len(request.scored_at) :]) if request.scored_at else ()
        opened = "".join(map(chr, request.prompt)).endswith('say("')
        try:
            yield Progress("It is", 1, prompt_logprobs=scores)
            yield Progress(' five.")' if opened else "", 1, finish_reason="stop")
        finally:
            self.closed.append(request.request_id)


def python(engine, grammar=None, **options):
    prompts = PromptBuilder(Letters(), 10_000, rendering=PythonRendering(examples=False))
    return ChatService(engine, prompts, PythonFormat(grammar), **options)


def asking(*more, **changes):
    one = msgspec.structs.replace(request(), tools=[Tool(name="get_time")], reads_turn=True)
    return msgspec.structs.replace(one, messages=[*one.messages, *more], **changes)


async def test_speech_is_begun_where_the_model_chooses_it():
    engine = Choosing({"s": -0.1, "g": -3.0})
    ending, *texts, completed = await collect(python(engine, scores_prompts=True).generate(asking()))
    assert ending == TurnEnd(probability=pytest.approx(0.8))
    assert "".join(text.text for text in texts) == "It is five."
    assert (completed.finish_reason, completed.completion_tokens) == ("stop", 2)
    (asked,) = engine.requests
    assert "".join(map(chr, asked.prompt)).endswith('what time is it|say("')
    assert asked.scored_at[1] == len(asked.prompt) - len('say("')
    assert set(map(chr, asked.scored)) == set("!.?|sg")
    assert asked.max_tokens == 256 - len('say("')


@pytest.mark.parametrize("likely", [{"s": -3.0, "g": -0.1}, {"s": -0.1, "g": math.nan}, {"g": -0.1}, {}])
async def test_where_the_model_may_call_the_answer_is_begun_again(likely):
    engine = Choosing(likely)
    events = await collect(python(engine, scores_prompts=True).generate(asking()))
    assert [type(event) for event in events] == [TurnEnd, TextDelta, Completed], "the end of the turn once"
    begun, again = engine.requests
    assert again.prompt == begun.prompt[: -len('say("')]
    assert (again.scored, again.scored_at) == ((), ())
    assert engine.closed == ["r", "r"]


async def test_an_answer_that_is_aborted_as_it_begins_again_is_not_begun():
    engine = Choosing({"s": -3.0, "g": -0.1})
    chat = python(engine, scores_prompts=True)
    stream = chat.generate(asking())
    assert isinstance(await anext(stream), TurnEnd)
    await chat.abort("r")
    assert (await collect(stream))[0].finish_reason == "abort"
    assert len(engine.requests) == 1


async def test_after_results_a_grammar_lets_the_model_only_speak():
    call = ToolCall(id="1", name="get_time", arguments={})
    results = [
        ChatMessage(role="assistant", content="", tool_calls=[call]),
        ChatMessage(role="tool", content="5", tool_call_id="1"),
    ]
    engine = Choosing()
    await collect(python(engine, CallGrammar(lambda _: None)).generate(asking(*results, reads_turn=False)))
    (asked,) = engine.requests
    assert (chr(asked.prompt[-1]), asked.scored, asked.scored_at) == ('"', (), ())
    assert "get_time" not in asked.structural_tag
    engine = Choosing()
    await collect(python(engine).generate(asking(*results, reads_turn=False)))
    assert chr(engine.requests[0].prompt[-1]) == "|", "without a grammar it may call again"


@pytest.mark.parametrize(
    ("able", "changes"),
    [
        (False, {}),
        (True, {"sampling": Sampling(temperature=0.7)}),
        (True, {"priority": Priority.WARM_UP}),
        (True, {"tools": []}),
        (True, {"tools": [Tool(name="set_timer")]}),
        (True, {"sampling": Sampling(max_tokens=5)}),
    ],
    ids=["no scores", "drawn", "warm-up", "no tools", "a call begins alike", "no room"],
)
async def test_speech_is_not_begun(able, changes):
    engine = Choosing({"s": -0.1, "g": -3.0})
    await collect(python(engine, scores_prompts=able).generate(asking(**changes)))
    (asked,) = engine.requests
    assert chr(asked.prompt[-1]) == "|"


async def test_speech_is_not_begun_where_a_call_must_be_made():
    engine = Choosing({"s": -0.1, "g": -3.0})
    grammar = CallGrammar(lambda _: None)
    with pytest.raises(InvalidModelOutputError):
        await collect(python(engine, grammar, scores_prompts=True).generate(asking(must_call="*")))
    (asked,) = engine.requests
    assert chr(asked.prompt[-1]) == "|"
    assert "say(" not in asked.structural_tag


async def test_questions_of_several_requests_run_one_after_the_other():
    engine = Scores(*[(-1.0, -2.0)] * 12)
    chat = service(engine)
    await asyncio.gather(*(collect(chat.generate(questions(name, 4))) for name in "abc"))
    assert engine.most == 4


async def test_a_question_that_fails_fails_the_request_and_leaves_none_running():
    engine = Scores((-1.0, -2.0), InferenceError("the engine failed"))
    chat = service(engine)
    with pytest.raises(InferenceError, match="the engine failed"):
        await collect(chat.generate(questions()))
    assert (engine.running, chat.active) == (0, 0)


async def test_an_abort_ends_all_questions_of_a_request():
    engine = Scores(None, None, (-1.0, -2.0), (-1.0, -2.0))
    chat = service(engine)
    running = asyncio.create_task(collect(chat.generate(questions("a"))))
    waiting = asyncio.create_task(collect(chat.generate(questions("b"))))
    await asyncio.sleep(0.05)
    await chat.abort("b")  # it waits for those of the other request
    engine.aborted.clear()
    await chat.abort("a")
    assert await running == await waiting == [Completed(finish_reason="abort")]
    assert len(engine.requests) == 2


@pytest.mark.parametrize(
    "bad",
    [
        questions(count=17),
        msgspec.structs.replace(request(), questions=[Question(text="", choices=["a", "b"])]),
        msgspec.structs.replace(request(), questions=[Question(text="a", choices=["b"])]),
    ],
)
async def test_questions_that_cannot_be_compared_are_refused(bad):
    with pytest.raises(InvalidMessageError):
        await collect(service(Scores()).generate(bad))
