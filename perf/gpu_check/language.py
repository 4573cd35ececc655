"""T3 and Qwen3-4B on vLLM's asynchronous engine, as their models start it, with random weights.

Every step is checked for NaN among the logits, which costs a little of the time that is measured.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from gpu_check.findings import Findings, Settings, SkippedError, memory_used_mib, read_planned
from parley.llm.engine import Engine, EngineRequest
from parley.llm.engine_metrics import ENGINE_FAMILIES, EngineLoad, EngineMetrics
from parley.llm.startup import start_engine
from parley.metrics import MetricsRecorder
from parley.runtime.parameters import Parameters
from parley_torch.tts.t3.messages import SpeechTokensRequest, TokensCompleted
from parley_torch.tts.t3.request import SPEAKER_EMBEDDING_SIZE, SPEECH_CODES, TOKENS_PER_SECOND, TokenVoice
from parley_torch.tts.t3.service import TokenUtterance

QWEN3_4B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "max_position_embeddings": 40960,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}
T3_WIDTH = 1024
T3_TEXTS = 704
T3_LAYERS = 30
_T3_SPEECHES = 8194


def t3_shapes(width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Of the original T3, as ``t3_cfg.safetensors`` names them."""
    inner = 4 * width
    yield "tfmr.embed_tokens.weight", (8, width)
    for layer in (f"tfmr.layers.{number}" for number in range(T3_LAYERS)):
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield f"{layer}.self_attn.{part}.weight", (width, width)
        yield f"{layer}.mlp.gate_proj.weight", (inner, width)
        yield f"{layer}.mlp.up_proj.weight", (inner, width)
        yield f"{layer}.mlp.down_proj.weight", (width, inner)
        yield f"{layer}.input_layernorm.weight", (width,)
        yield f"{layer}.post_attention_layernorm.weight", (width,)
    yield "tfmr.norm.weight", (width,)
    yield "text_emb.weight", (T3_TEXTS, width)
    yield "speech_emb.weight", (_T3_SPEECHES, width)
    yield "text_pos_emb.emb.weight", (2_050, width)
    yield "speech_pos_emb.emb.weight", (4_100, width)
    yield "text_head.weight", (T3_TEXTS, width)
    yield "speech_head.weight", (_T3_SPEECHES, width)
    yield "cond_enc.spkr_enc.weight", (width, SPEAKER_EMBEDDING_SIZE)
    yield "cond_enc.spkr_enc.bias", (width,)
    yield "cond_enc.emotion_adv_fc.weight", (width, 1)
    yield "cond_enc.perceiver.pre_attention_query", (1, 32, width)
    for part in ("norm", "to_q", "to_k", "to_v", "proj_out"):
        name = f"cond_enc.perceiver.attn.{part}"
        yield f"{name}.weight", (width,) if part == "norm" else (width, width)
        yield f"{name}.bias", (width,)


_REPOSITORY = Path(__file__).parents[2] / "model_repository"
_SESSIONS = (1, 8, 32, 64)
_ROUNDS = 3
_LEAST_S = 60.0
"""Time that must be left for an engine to be started: compilation and graphs take most of it."""
_IDLE_TIMEOUT_S = 10.0

_T3_TOKENS = 5 * TOKENS_PER_SECOND
_T3_TEXT_TOKENS = 64
"""With voice, emotion and start, a prompt of 100 positions."""
_VOICE_TOKENS = 150

_QWEN3_TOKENS = 64
_QWEN3_PROMPT = 512
_QWEN3_SMALL: dict[str, Any] = {
    "head_dim": 64,
    "hidden_size": 128,
    "intermediate_size": 256,
    "max_position_embeddings": 2048,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


class Asked(Protocol):
    """Starts a request of a name for so many tokens, and reports its tokens as they come."""

    def __call__(self, name: str, tokens: int) -> AsyncGenerator[Sequence[int], None]:
        """Each report has at least one token."""
        ...


class _Loads(EngineMetrics):
    """Keeps what an engine's steps report."""

    def __init__(self, model: str) -> None:
        super().__init__(MetricsRecorder(ENGINE_FAMILIES), model, model)
        self.seen: list[EngineLoad] = []

    def on_step(self, core: int, load: EngineLoad) -> None:
        """See the base class."""
        self.seen.append(load)
        super().on_step(core, load)


@dataclass
class _Running:
    """An engine and how to ask it."""

    engine: Engine[Any]
    loads: _Loads
    ask: Asked
    abort: Callable[[str], Coroutine[Any, Any, None]]
    vocabulary: int
    """Ids of all tokens are below."""


@dataclass(frozen=True)
class _Answer:
    """What came of one request."""

    tokens: list[int]
    first_s: float
    taken_s: float


def check_t3(settings: Settings, findings: Findings) -> None:
    """Chatterbox's T3, whose guidance makes two streams of each utterance, behind its own service."""
    tokens = 10 if settings.small else _T3_TOKENS

    async def check(folder: Path) -> None:
        checkpoint = _write_t3(folder / "checkpoint", settings)
        running = await _measure_start(settings, findings, lambda: _start_t3(settings, checkpoint))
        await _check(settings, findings, running, tokens)

    _run(settings, check)


def check_qwen3(settings: Settings, findings: Findings) -> None:
    """A language model of Qwen3-4B's size in bfloat16. Token ids in and out: there is no tokenizer."""
    tokens = 8 if settings.small else _QWEN3_TOKENS

    async def check(folder: Path) -> None:
        config = QWEN3_4B | (_QWEN3_SMALL if settings.small else {})
        (folder / "config.json").write_text(json.dumps(config))
        running = await _measure_start(settings, findings, lambda: _start_qwen3(settings, folder, config))
        await _check(settings, findings, running, tokens)

    _run(settings, check)


def _run(settings: Settings, check: Callable[[Path], Coroutine[Any, Any, None]]) -> None:
    if importlib.util.find_spec("vllm") is None:
        raise SkippedError("vLLM is not installed")
    if settings.device.type == "cuda" and settings.seconds_left < _LEAST_S:
        raise SkippedError(f"starting the engine may take {_LEAST_S:g} s")
    with tempfile.TemporaryDirectory() as folder, _environment(Path(folder), settings):
        asyncio.run(check(Path(folder)))


@contextmanager
def _environment(folder: Path, settings: Settings) -> Iterator[None]:
    """Caches of its own, so that what is compiled counts, and afterwards the environment as it was."""
    before = dict(os.environ)
    os.environ.update(
        XDG_CACHE_HOME=str(folder / "cache"),
        VLLM_RAISE_ON_LOGIT_NANS="1",
        VLLM_ENGINE_READY_TIMEOUT_S=str(max(30, int(settings.seconds_left))),
    )
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _parameters(settings: Settings, model: str, **values: str) -> Parameters:
    """Those of the gpu profile; on a CPU with the small profile's arguments for the engine."""
    arguments = "model.json" if settings.device.type == "cuda" else "model.tiny.json"
    chosen = {"engine": "async", "engine_args": arguments, "max_requests": "128", **values}
    chosen |= read_planned(model, settings.device)
    return Parameters(model, chosen, model_dir=_REPOSITORY / model, environment={})


def _start_t3(settings: Settings, checkpoint: Path) -> _Running:
    from parley_torch.models.t3 import load_service  # noqa: PLC0415 - a section of its own without vLLM

    loads = _Loads("t3")
    parameters = _parameters(settings, "t3", weights=str(checkpoint), prompt_device=settings.device.type)
    service, engine = load_service(parameters, "", metrics=loads)
    rng = np.random.default_rng(0)

    async def ask(name: str, tokens: int) -> AsyncGenerator[Sequence[int], None]:
        async with aclosing(service.generate(_utterance(name, tokens, rng))) as events:
            async for event, spoken in events:
                if not isinstance(event, TokensCompleted):
                    yield spoken.tolist()

    return _Running(engine, loads, ask, service.abort, SPEECH_CODES)


def _utterance(name: str, tokens: int, rng: np.random.Generator) -> TokenUtterance:
    """A text and a voice that no other request has: nothing of it is in the prefix cache."""
    voice = TokenVoice(
        rng.standard_normal(SPEAKER_EMBEDDING_SIZE).astype(np.float32),
        rng.integers(0, SPEECH_CODES, _VOICE_TOKENS).astype(np.int32),
    )
    text = [255, *rng.integers(256, T3_TEXTS, _T3_TEXT_TOKENS - 2).tolist(), 0]
    return TokenUtterance(SpeechTokensRequest(request_id=name, max_tokens=tokens), voice, text)


def _start_qwen3(settings: Settings, folder: Path, config: dict[str, Any]) -> _Running:
    loads = _Loads("qwen3")

    def translation() -> Any:
        from parley.llm.vllm_types import TextTranslation  # noqa: PLC0415 - imports vLLM

        return TextTranslation()

    fixed = {"load_format": "dummy", "skip_tokenizer_init": True, "dtype": "bfloat16"}
    parameters = _parameters(settings, "qwen3")
    engine: Engine[Any] = start_engine(parameters, folder, translation, fixed=fixed, metrics=loads).engine
    rng = np.random.default_rng(0)
    length = 32 if settings.small else _QWEN3_PROMPT

    async def ask(name: str, tokens: int) -> AsyncGenerator[Sequence[int], None]:
        # No mark among them: those are at the end of the vocabulary.
        prompt = rng.integers(0, config["vocab_size"] - 1_000, length).tolist()
        async with aclosing(engine.generate(EngineRequest(name, prompt, tokens))) as reports:
            async for report in reports:
                if report.token_ids:
                    yield report.token_ids

    return _Running(engine, loads, ask, engine.abort, config["vocab_size"])


def _t3_width(settings: Settings) -> int:
    return 128 if settings.small else T3_WIDTH


def _write_t3(folder: Path, settings: Settings) -> Path:
    """A random checkpoint of the published size and names, in float32 as the published one.

    Its logits differ enough for min_p to exclude most tokens. Marks, the end of speech among them, have the
    logit 0, which is always excluded: every utterance gets all its tokens.
    """
    from safetensors.torch import save_file  # noqa: PLC0415 - comes with vLLM
    from tokenizers import Tokenizer, models  # noqa: PLC0415 - comes with vLLM

    folder.mkdir()
    width = _t3_width(settings)
    generator = torch.Generator(settings.device).manual_seed(0)
    tensors = {}
    for name, shape in t3_shapes(width):
        noise = torch.randn(shape, generator=generator, device=settings.device)
        if "norm" in name:
            noise = noise.mul_(0.05).add_(1.0 if name.endswith("weight") else 0.0)
        elif "_emb." not in name:
            noise *= 5 / width**0.5
        tensors[name] = noise.cpu()
    tensors["speech_head.weight"][SPEECH_CODES:] = 0
    save_file(tensors, folder / "t3_cfg.safetensors")
    Tokenizer(models.BPE(vocab={"[UNK]": 1}, merges=[], unk_token="[UNK]")).save(  # noqa: S106 - no password
        str(folder / "tokenizer.json")
    )
    return folder


async def _measure_start(settings: Settings, findings: Findings, start: Callable[[], _Running]) -> _Running:
    """Start an engine; its time has compilation, the graphs, and the import of vLLM if it is the first."""
    before, began = memory_used_mib(settings.device), time.perf_counter()
    running = start()
    findings.measure("start", time.perf_counter() - began, "s")
    if settings.device.type == "cuda":
        findings.measure("memory of the GPU", (memory_used_mib(settings.device) - before) / 1024, "GiB")
    findings.measure("tokens that the cache holds", _cache_tokens(running.engine), "")
    return running


def _cache_tokens(engine: Any) -> int:
    cache = engine._engine.vllm_config.cache_config  # noqa: SLF001 - nothing public has it
    return int(cache.num_gpu_blocks * cache.block_size)


async def _check(settings: Settings, findings: Findings, running: _Running, tokens: int) -> None:
    """Speed, then cancellation, then the end."""
    before = 0.0
    try:
        findings.measure("first request", (await _follow(running, "first", tokens)).taken_s, "s")
        for sessions in _SESSIONS[:2] if settings.small else _SESSIONS:
            if settings.seconds_left <= 0:
                findings.skipped = f"no time for {sessions} requests"
                break
            await _measure_level(settings, findings, running, sessions, tokens)
        await _check_cancelling(settings, findings, running, tokens)
        before = memory_used_mib(settings.device)
    finally:
        began = time.perf_counter()
        await running.engine.shutdown()
    findings.measure("shutdown", time.perf_counter() - began, "s")
    if settings.device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        findings.measure("memory freed", (before - memory_used_mib(settings.device)) / 1024, "GiB")


async def _measure_level(
    settings: Settings, findings: Findings, running: _Running, sessions: int, tokens: int
) -> None:
    """Requests that all begin at once, some rounds of them."""
    answers: list[_Answer] = []
    rates = []
    for number in range(1 if settings.small else _ROUNDS):
        began = time.perf_counter()
        asked = [_follow(running, f"{sessions}-{number}-{one}", tokens) for one in range(sessions)]
        answers += await asyncio.gather(*asked)
        rates.append(sessions * tokens / (time.perf_counter() - began))
    name = f"{sessions} requests"
    first = [1_000 * answer.first_s for answer in answers]
    rate = statistics.median(rates)
    findings.measure(f"{name}: tokens in a second", rate, "")
    findings.measure(f"{name}: … of each", rate / sessions, "")
    findings.measure(f"{name}: first token p50", statistics.median(first), "ms")
    findings.measure(f"{name}: first token, the last", max(first), "ms")
    lengths = {len(answer.tokens) for answer in answers}
    findings.check(f"{name}: number of tokens", lengths == {tokens}, f"{sorted(lengths)}")
    spoken = {token for answer in answers for token in answer.tokens}
    low, high = min(spoken), max(spoken)
    findings.check(f"{name}: in the vocabulary", 0 <= low <= high < running.vocabulary, f"{low} to {high}")


async def _follow(running: _Running, name: str, tokens: int) -> _Answer:
    began = time.perf_counter()
    first_s, found = 0.0, list[int]()
    async with aclosing(running.ask(name, tokens)) as reports:
        async for report in reports:
            first_s = first_s or time.perf_counter() - began
            found += report
    return _Answer(found, first_s, time.perf_counter() - began)


async def _check_cancelling(settings: Settings, findings: Findings, running: _Running, tokens: int) -> None:
    """Requests that are aborted, and others whose readers leave, must free what they hold."""
    sessions = 4 if settings.small else 32
    began = time.perf_counter()
    await asyncio.gather(*(_cancel(running, f"cancelled-{one}", one % 2 == 0) for one in range(sessions)))
    while running.engine.busy and time.perf_counter() - began < _IDLE_TIMEOUT_S:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.01)
    findings.measure("cancelled: until none is left", time.perf_counter() - began, "s")
    findings.check("cancelled: none is left", not running.engine.busy)
    # An engine reports nothing while it has no requests: what it says while it has one tells.
    await asyncio.sleep(0.2)
    running.loads.seen.clear()
    await _follow(running, "after", tokens)
    loads = running.loads.seen
    most = max((load.running + load.waiting for load in loads), default=0)
    held = max((load.cache for load in loads), default=0.0) * _cache_tokens(running.engine)
    findings.check("cancelled: the engine has but the next request", most == 1, f"{most}")
    findings.check("cancelled: the cache is free", held < 1_000, f"{held:.0f} tokens held")


async def _cancel(running: _Running, name: str, abort: bool) -> None:
    """Begin a long request, and end it after its first tokens."""
    async with aclosing(running.ask(name, 1_000)) as reports:
        await anext(reports)
        if abort:
            await running.abort(name)
            async for _ in reports:
                pass
