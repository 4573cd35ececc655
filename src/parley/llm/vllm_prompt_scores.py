"""Log probabilities of tokens in the places of some tokens of a prompt, on a CPU. Imports vLLM.

vLLM has them for all tokens of a prompt: with 32 new ones the first token of an answer takes a third longer,
and what it has of tokens in the prefix cache is unset memory, which it cannot always write as text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from parley.llm.vllm_api import GPUModelRunner, LogprobsTensors
from parley.llm.vllm_types import SCORED


def register_prompt_scores() -> None:
    """Let vLLM score only what :data:`parley.llm.vllm_types.SCORED` names, also in its runner for a CPU."""
    GPUModelRunner._get_prompt_logprobs_dict = _score  # noqa: SLF001 - vLLM has no public name for it


def _score(runner: Any, hidden_states: Any, scheduled: Mapping[str, int]) -> dict[str, Any]:
    """Log probabilities ``[places, tokens]`` of each request whose prompt this step completes.

    ``hidden_states``: ``[t, d]``, of all tokens of the step; ``scheduled``: their number by request.
    """
    found = {}
    for request_id in [one for one in runner.num_prompt_logprobs if one in scheduled]:
        request, count = runner.requests[request_id], scheduled[request_id]
        places, tokens = request.sampling_params.extra_args[SCORED]
        begin = int(runner.query_start_loc.np[runner.input_batch.req_id_to_index[request_id]])
        rows = {number: place - 1 - request.num_computed_tokens for number, place in enumerate(places)}
        rows = {number: begin + row for number, row in rows.items() if 0 <= row < count}
        if rows:
            logits = runner.model.compute_logits(hidden_states[[*rows.values()]])
            scores = logits.float().log_softmax(dim=-1)[:, tokens]
            if request.in_progress_prompt_logprobs_cpu is None:  # places may be in several steps
                unknown = scores.new_full((len(places), len(tokens)), math.nan)
                ids, ranks = unknown.new_tensor([tokens] * len(places)).int(), unknown.new_zeros(len(places))
                request.in_progress_prompt_logprobs_cpu = LogprobsTensors(ids, unknown, ranks.int())
            request.in_progress_prompt_logprobs_cpu.logprobs[[*rows]] = scores
        if request.num_computed_tokens + count >= len(request.prompt_token_ids):
            del runner.num_prompt_logprobs[request_id]
            if request.in_progress_prompt_logprobs_cpu is not None:
                found[request_id] = request.in_progress_prompt_logprobs_cpu
                request.in_progress_prompt_logprobs_cpu = None
    return found
