"""Talks to the small model through the real engine; prints what happened as one JSON object.

    run_chat.py FOLDER

In a process of its own: importing vLLM changes the interpreter, and there is one engine per process.
"""

import asyncio
import copy
import json
import logging
import sys
from pathlib import Path

from xgrammar import Grammar

from parley.agent.config import AgentDeadlines
from parley.agent.generation import SaltedChat, warm_up
from parley.chat import ChatMessage
from parley.llm.engine_metrics import ENGINE_FAMILIES, EngineMetrics
from parley.llm.messages import GenerateRequest, Priority, Question, Sampling
from parley.llm.prompt import PromptBuilder
from parley.llm.python_calls.format import CallGrammar, PythonFormat
from parley.llm.python_calls.rendering import PythonRendering
from parley.llm.replies import HermesFormat
from parley.llm.service import ChatService
from parley.metrics import MetricsRecorder
from parley.models.qwen3 import load_chat_service
from parley.protocol import Tool
from parley.runtime.parameters import Parameters
from parley.tracing import Trace

ROOT = Path(__file__).parents[3]
SYSTEM = "You are Parley, a friendly voice assistant. Keep answers short."
CITY = {"type": "string", "description": "The name of the city."}
DAY = {"type": "string", "description": "The day, if it is not now."}
MINUTES = {"type": "integer", "description": "How many minutes."}
LABEL = {"type": "string", "description": "What the timer is for."}
# As the small model was trained with.
WANTED = (
    ("get_weather", "Get the weather in a city.", {"city": CITY, "day": DAY}),
    ("get_time", "Get the time in a city.", {"city": CITY}),
    ("set_timer", "Start a timer.", {"minutes": MINUTES, "label": LABEL}),
)
QUESTIONS = (
    "what's the weather in paris",
    "set a timer for ten minutes for the pasta",
    "hello",
    "tell me a story",
)


def make_tools(**limits):
    """The tools; ``limits`` are added to the properties of these names."""
    made = []
    for name, description, properties in copy.deepcopy(WANTED):
        for key, limit in limits.items():
            if key in properties:
                properties[key] |= limit
        parameters = {"type": "object", "properties": properties, "required": [next(iter(properties))]}
        made.append(Tool(name=name, description=description, parameters=parameters))
    return made


def request(name, text, tools, **fields):
    messages = [ChatMessage(role="system", content=SYSTEM), ChatMessage(role="user", content=text)]
    return GenerateRequest(request_id=name, messages=messages, tools=tools, **fields)


async def ask(chat, *args, **fields):
    """The text, the calls, and how many prompt tokens were cached."""
    events = [event async for event in chat.generate(request(*args, **fields))]
    text = "".join(event.text for event in events if hasattr(event, "text"))
    calls = [[event.call.name, event.call.arguments] for event in events if hasattr(event, "call")]
    return {
        "text": text,
        "calls": calls,
        "cached": events[-1].cached_tokens,
        "prompt": events[-1].prompt_tokens,
    }


async def compare(chat, name, tools, questions):
    """The probabilities, and how many prompt tokens were cached."""
    wanted = request(name, "what's the weather in paris", tools, questions=questions, cache_salt="questions")
    choices, completed = [event async for event in chat.generate(wanted)]
    return [choices.probabilities, completed.cached_tokens, completed.prompt_tokens]


async def read_turn(chat, name, text, tools):
    """How a turn ends, asked alone and read in the prompt of an answer; this answer, and one without it."""
    common = {"cache_salt": "turns", "sampling": Sampling(max_tokens=12)}
    asked = [event async for event in chat.generate(request(f"{name} end", text, tools, turn_end=True))]
    read, *answer = [
        event async for event in chat.generate(request(f"{name} too", text, tools, reads_turn=True, **common))
    ]
    plain = [event async for event in chat.generate(request(f"{name} plain", text, tools, **common))]
    texts = ["".join(getattr(one, "text", "") for one in events) for events in (answer, plain)]
    return [asked[0].probability, read.probability, *texts, answer[-1].cached_tokens]


class Counting:
    """The engine; counts its requests."""

    def __init__(self, engine):
        self._engine, self.abort, self.count = engine, engine.abort, 0

    def generate(self, request):
        self.count += 1
        return self._engine.generate(request)


async def speak(engine, tokenizer, tools):
    """Answers in Python, begun as speech and not, each with the number of the engine's requests."""
    prompts = PromptBuilder(tokenizer, 1_000, rendering=PythonRendering(examples=False), block=32)
    grammar = CallGrammar(Grammar.from_structural_tag)
    found = []
    for number, text in enumerate((*QUESTIONS, "say(", "get_time(", 'is it late? say("', "get_weather")):
        answers = []
        for scores in (True, False):
            counting = Counting(engine)
            chat = ChatService(counting, prompts, PythonFormat(grammar), scores_prompts=scores)
            answer = await ask(
                chat, f"python {number} {scores}", text, tools, sampling=Sampling(max_tokens=20)
            )
            answers.append([answer["text"], answer["calls"], counting.count])
        found.append(answers)
    many = [Tool(name=f"{letter}_tool") for letter in "abcdefghijklmnopqrtuvwxyz"]
    chat = ChatService(engine, prompts, PythonFormat(grammar), scores_prompts=True)
    sampling = Sampling(max_tokens=20)
    answer = await ask(chat, "python many", "hello", many, reads_turn=True, sampling=sampling)
    return found, answer


class Stages(Trace):
    """Keeps the lengths of the spans below it, in seconds."""

    def __init__(self, kept, name="", start_s=0.0):
        self.kept, self._name, self._start_s = kept, name, start_s

    def child(self, name, attributes=None, *, start_s=None):
        return Stages(self.kept, name, start_s)

    def end(self, end_s=None, failure=""):
        self.kept[self._name] = end_s - self._start_s


async def watch(recorder, most):
    """Keep the highest value of each gauge, and all times in the queue."""
    while True:
        changes = recorder.drain()
        for (_, labels), value in changes.values.items():
            name = dict(labels).get("state", "cache")
            most["last", name] = value
            most[name] = max(most.get(name, 0), value)
        most["queued"] = most.get("queued", []) + [value for *_, value in changes.observations]
        await asyncio.sleep(0.01)


async def overtake(chat, tools):
    """The order in which requests begin that found the engine full, the least urgent having come first."""

    order = []
    full = asyncio.Event()

    async def run(name, priority, tokens=60):
        sampling = Sampling(max_tokens=tokens)
        begun = False
        async for _ in chat.generate(
            request(name, "tell me a story", tools, priority=priority, sampling=sampling)
        ):
            if not begun:
                order.append(name)
                begun = True
                if len(order) == 2:  # max_num_seqs
                    full.set()

    # They do not end at the same time, nor do those that take their places.
    lengths = {"first": 30, "second": 60}
    running = [asyncio.create_task(run(name, Priority.ANSWER, tokens)) for name, tokens in lengths.items()]
    await full.wait()
    waiting = [asyncio.create_task(run(level.name, level)) for level in reversed(Priority)]
    await asyncio.gather(*running, *waiting)
    return order[len(running) :]


async def main(folder):
    arguments = json.loads((ROOT / "model_repository/qwen3/1/model.tiny.json").read_text())
    (folder / "1").mkdir()
    (folder / "1" / "args.json").write_text(json.dumps({**arguments, "max_num_seqs": 2}))
    values = {
        "engine": "inprocess",
        "engine_args": "args.json",
        "weights": str(ROOT / "models" / "tiny-qwen3"),
        "threads": "1",
        "chat_template_kwargs": '{"enable_thinking": false}',
    }
    recorder = MetricsRecorder(ENGINE_FAMILIES)
    guided, engine = load_chat_service(
        Parameters("qwen3", values, model_dir=folder, environment={}),
        "",
        metrics=EngineMetrics(recorder, "qwen3", "qwen3_0"),
    )
    free = ChatService(engine, guided._prompts, HermesFormat())
    tools = make_tools()
    most = {}
    watching = asyncio.create_task(watch(recorder, most))
    found = {"order": await overtake(guided, tools)}
    await asyncio.sleep(0.1)
    watching.cancel()
    found["most"] = {name: most[name] for name in ("running", "waiting", "cache", "queued")}
    found["last"] = {name: most["last", name] for name in ("running", "waiting", "cache")}
    stages = {}
    _ = [event async for event in guided.generate(request("staged", "hello", tools), Stages(stages))]
    found["stages"] = stages
    system = [ChatMessage(role="system", content="Speak of boats.")]
    warmed = [ChatMessage(role="user", content="hello")]
    await warm_up(SaltedChat(guided, "one"), "call", system, tools, AgentDeadlines())
    found["warmed"] = {}
    for salt in ("two", "", "one"):
        turn = GenerateRequest(
            request_id=f"turn {salt}", messages=system + warmed, tools=tools, cache_salt=salt
        )
        completed = [event async for event in guided.generate(turn)][-1]
        found["warmed"][salt] = [completed.cached_tokens, completed.prompt_tokens]
    asked = [
        Question(text="Is it late?", choices=["Yes", "No"]),
        Question(text="Where is the user?", choices=["a house", "a boat", "a train"]),
        Question(text="How late is it?", choices=["1", "2", "3", "4", "5"]),
        Question(text="Who is it?", choices=["a boat", "a boat house"]),
    ]
    found["questions"] = [
        await compare(guided, f"questions {number}", tools, questions)
        for number, questions in enumerate((asked, *([one] for one in asked)))
    ]
    found["turns"] = [
        await read_turn(guided, f"turn {number}", text, tools)
        for number, text in enumerate(("tell me a story.", "tell me a", "hello there, good morning!"))
    ]
    narrow = make_tools(city={"enum": ["Rome", "London"]}, minutes={"minimum": 20, "maximum": 30})
    broken = make_tools(city={"enum": []}, label={"maxLength": 1_000_000})
    for name, chat, offered in (
        ("guided", guided, tools),
        ("free", free, tools),
        ("narrow", guided, narrow),
        ("narrow, free", free, narrow),
        ("broken", guided, broken),
        ("broken, free", free, broken),
    ):
        found[name] = [await ask(chat, f"{name} {text}", text, offered) for text in QUESTIONS]
    wild = [
        ask(
            guided,
            f"wild {seed}",
            QUESTIONS[seed % 2],
            narrow,
            sampling=Sampling(temperature=2.0, seed=seed, max_tokens=120),
        )
        for seed in range(24)
    ]
    found["forced"] = [
        await ask(guided, f"forced {name}", "hello", tools, must_call=name) for name in ("*", "set_timer")
    ]
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    found["json"] = (await ask(guided, "json", "hello", [], json_schema=schema))["text"]
    found["spoken"], found["many"] = await speak(engine, guided._prompts._tokenizer, tools[:2])
    found["wild"] = [outcome["calls"] for outcome in await asyncio.gather(*wild)]
    await engine.shutdown()
    return found


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
