"""Runs requests through vLLM and through the reference, and prints both; started by the tests.

    run_engine.py FOLDER CACHE RUNNER [COMPILER]

One line of JSON per checkpoint. vLLM changes the interpreter that imports it, so it gets one of its own; the
checkpoints share its import, which takes longer than their requests, and have a process each.
"""

# ruff: noqa: E402 - vLLM reads its environment when it is imported

import itertools
import json
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

from parley.llm.startup import prepare_environment
from parley.llm.vllm_api import choose_runner

if len(sys.argv) > 4:
    # The compiler's interpreter runs the kernels of the runner V2. vLLM wants a backend for processors.
    sys.path.append(sys.argv[4])
    import triton.backends

    triton.backends.backends["cpu"] = SimpleNamespace(driver=None)

folder, runner = Path(sys.argv[1]), sys.argv[3]
choose_runner(runner, os.environ)
prepare_environment(engine_in_process=True, compiles=False, threads=1, cache_dir=Path(sys.argv[2]))

sys.path.insert(0, str(Path(__file__).parents[4] / "build"))

import numpy as np
import torch
from vllm.engine.arg_utils import EngineArgs

from chatterbox_export.small_t3 import write_small_t3
from chatterbox_export.t3_reference import Reference, greedy
from parley.llm.inprocess import VllmEngine
from parley_torch.models.t3 import engine_settings
from parley_torch.tts.t3 import plugin
from parley_torch.tts.t3.checkpoint import engine_folder, find_checkpoint, read_shape
from parley_torch.tts.t3.prompt import PromptEncoder
from parley_torch.tts.t3.request import TokenGeneration, TokenSampling, TokenVoice
from parley_torch.tts.t3.vllm_sampling import SpeechTranslation

if runner == "v2":
    from vllm.v1.sample.ops import topk_topp_sampler

    # The interpreter cannot run this kernel.
    topk_topp_sampler.apply_top_k_top_p_triton = topk_topp_sampler.apply_top_k_top_p_pytorch

# The interpreter is slow.
UTTERANCES, COUNT = (6, 8) if runner == "v2" else (16, 60)
BLOCK = 32


def each_in_a_process(variants):
    """Forks one process after the other, and returns in these; ends the first one after them."""
    for variant in variants:
        if os.fork() == 0:
            return variant
        if status := os.wait()[1]:
            sys.exit(f"{variant}: ended with {os.waitstatus_to_exitcode(status)}")
    sys.exit()


variant = each_in_a_process(("original", "turbo"))
torch.set_num_threads(1)
plugin.register()
checkpoint = find_checkpoint(write_small_t3(folder / variant, variant, seed=3))
shape = read_shape(checkpoint)
encoder = PromptEncoder.load(checkpoint, shape)
reference = Reference(checkpoint, shape)
engine = VllmEngine(
    EngineArgs(
        **{
            "model": str(engine_folder(checkpoint, shape, folder / "engines")),
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": 512,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 48,  # prompts come in several pieces
            "enable_chunked_prefill": True,
            "block_size": BLOCK,
            # Room for about three utterances: the others are pushed out and start over.
            "num_gpu_blocks_override": 20,
            "kv_cache_memory_bytes": 16 << 20,
            "enable_prefix_caching": True,
            "disable_log_stats": True,
            "seed": 0,
            **engine_settings(runner),
        }
    ),
    SpeechTranslation(guided=shape.guided, runner=runner),
)
scheduler = engine._engine.engine_core.engine_core.scheduler


def seeded(seed):
    """Samples tokens with noise that depends on the seed and on their number."""
    steps = itertools.count()

    def choose(scores):
        dice = np.random.Generator(np.random.Philox(key=seed, counter=[0, next(steps), 0, 0]))
        # The model has ids for placeholders too.
        noise = -np.log(dice.standard_exponential(len(scores) + 128, np.float32))
        return int((scores + torch.from_numpy(noise[: len(scores)])).argmax())

    return choose


dice = random.Random(0)


def utterance(number):
    noise = np.random.default_rng(number % 3)
    voice = TokenVoice(
        noise.standard_normal(256, np.float32),
        noise.integers(0, 6561, 20 + 60 * (number % 3), np.int32),
    )
    text = [255, *(dice.randrange(1, 250) for _ in range(dice.randint(5, 90))), 0]
    weight = (0.0, 0.24, 0.5, 1.0)[(number + number // 4) % 4]
    penalty = (1.0, 1.2, 2.0)[number % 3]
    seed = 1000 + number if number % 2 else None
    if seed is not None:
        min_p, top_k = (0.02, 0) if shape.guided else (0.0, 50)
        sampling = TokenSampling(0.8, 0.9, top_k, min_p, penalty, seed)
    elif number % 4 == 2:
        sampling = TokenSampling(0.7, 1.0, 1, 0.0, penalty)  # by vLLM itself, from one token
    else:
        sampling = TokenSampling(0.0, 1.0, 0, 0.0, penalty)
    prompt = encoder.encode(voice, text, exaggeration=number / 10, guidance_weight=weight)
    expected, margin = reference.generate(
        prompt.embeddings, weight, sampling, COUNT, greedy if seed is None else seeded(seed)
    )
    return TokenGeneration(f"r{number}", prompt, COUNT, sampling), expected, margin


def run(requests, *, together):
    """Tokens by request; requests come one by one, a few steps apart."""
    waiting = list(requests)
    tokens = {request.request_id: [] for request in requests}
    reasons, cached, preempted, steps = {}, {}, 0, 0
    while waiting or engine.busy():
        if waiting and (not engine.busy() or (together and steps % 3 == 0)):
            engine.add(waiting.pop(0))
        for name, progress in engine.step():
            tokens[name] += progress.token_ids
            reasons[name] = progress.finish_reason
            cached[name] = progress.cached_tokens
        preempted = max([preempted, *(r.num_preemptions for r in scheduler.requests.values())])
        steps += 1
    return {"tokens": tokens, "reasons": reasons, "cached": cached, "preempted": preempted}


def run_with_abort(aborted, other):
    """Abort one of two requests after some tokens."""
    tokens = {aborted.request_id: [], other.request_id: []}
    engine.add(aborted)
    engine.add(other)
    after = None
    while engine.busy():
        for name, progress in engine.step():
            tokens[name] += progress.token_ids
        if after is None and len(tokens[aborted.request_id]) >= 5:
            engine.abort(aborted.request_id)
            after = len(tokens[aborted.request_id])
    return {
        "after_the_abort": len(tokens[aborted.request_id]) - after,
        "other": tokens[other.request_id],
        "cache_in_use": scheduler.kv_cache_manager.usage,
    }


cases = [utterance(number) for number in range(UTTERANCES)]
requests = [request for request, _, _ in cases]
expected = {request.request_id: tokens for request, tokens, _ in cases}
longest = max(requests[1:], key=lambda request: len(expected[request.request_id]))
print(
    json.dumps(
        {
            "variant": variant,
            "is_v2": engine._engine.vllm_config.use_v2_model_runner,
            "expected": expected,
            "margin": min(margin for request, _, margin in cases if not request.sampling.temperature),
            "longest_prompt": max(len(request.prompt.ids) for request in requests),
            "together": run(requests, together=True),
            "again": run(requests[:4], together=runner == "v2"),
            "twice": run(requests[:1], together=False),
            "aborted": run_with_abort(longest, requests[0]),
        }
    )
)
