"""T3 written down plainly: one utterance at a time, Hugging Face's transformers, a loop.

It says the same as ``T3.inference`` and ``T3.inference_turbo`` of chatterbox-tts, which the
parity tests check; tests hold the vLLM models against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from parley_torch.tts.t3.checkpoint import T3Shape
from parley_torch.tts.t3.request import END_OF_SPEECH, START_OF_SPEECH, TokenSampling


def greedy(scores: Tensor) -> int:
    """The best token."""
    return int(scores.argmax())


class Reference:
    """Generates from the rows that :class:`parley_torch.tts.t3.prompt.PromptEncoder` computes."""

    def __init__(self, checkpoint: Path, shape: T3Shape) -> None:
        self.shape = shape
        state = load_file(checkpoint)
        self.embedding = state["speech_emb.weight"]
        self.head, self.bias = state["speech_head.weight"], state.get("speech_head.bias")
        self.places = state.get("speech_pos_emb.emb.weight")
        self.model = (llama if shape.guided else gpt2)(shape)
        own = {name.removeprefix("tfmr."): value for name, value in state.items() if name.startswith("tfmr.")}
        own.pop("embed_tokens.weight" if shape.guided else "wte.weight")
        missing, unexpected = self.model.load_state_dict(own, strict=False)
        if len(missing) > 1 or unexpected:  # the unused embeddings of words are missing
            raise ValueError(f"{checkpoint}: missing are {missing}, unexpected are {unexpected}")
        self.model.eval()

    @torch.inference_mode()
    def logits(self, prompt: Tensor, tokens: Sequence[int]) -> Tensor:
        """Logits after the prompt and after each token, ``[n + 1, vocabulary]`` for each half of guidance.

        Args:
            prompt: embeddings, as the engine gets them.
            tokens: n tokens, which need not be likely.

        Returns:
            ``[2, n + 1, vocabulary]``; ``[1, ...]`` for Turbo.
        """
        rows = self._rows(prompt)
        fed = torch.stack([self._fed(token, step) for step, token in enumerate(tokens, 1)])
        everything = torch.cat([rows, fed.expand(len(rows), -1, -1)], dim=1)
        hidden = self.model(inputs_embeds=everything).last_hidden_state[:, -len(tokens) - 1 :]
        return torch.nn.functional.linear(hidden, self.head, self.bias)

    def _rows(self, prompt: Tensor) -> Tensor:
        return torch.stack(prompt.split(self.shape.width, -1)) if self.shape.guided else prompt[None]

    def _fed(self, token: int, step: int) -> Tensor:
        row = self.embedding[token]
        return row if self.places is None else row + self.places[step]

    @torch.inference_mode()
    def generate(
        self,
        prompt: Tensor,
        weight: float,
        sampling: TokenSampling,
        count: int,
        choose: Callable[[Tensor], int] = greedy,
    ) -> tuple[list[int], float]:
        """Tokens up to and with the stop token, and the smallest margin of a greedy decision."""
        rows = self._rows(prompt)
        output = self.model(inputs_embeds=rows, use_cache=True)
        tokens: list[int] = []
        margin = float("inf")
        for step in range(1, count + 1):
            logits = torch.nn.functional.linear(output.last_hidden_state[:, -1], self.head, self.bias)
            if self.shape.guided:
                logits = logits[:1] + weight * (logits[:1] - logits[1:2])
            scores = self.scores(tokens, logits, sampling)[0]
            best = scores.topk(2).values
            margin = min(margin, float(best[0] - best[1]))
            tokens.append(choose(scores))
            if tokens[-1] == END_OF_SPEECH:
                break
            fed = self._fed(tokens[-1], step).expand(len(rows), 1, -1)
            output = self.model(inputs_embeds=fed, past_key_values=output.past_key_values, use_cache=True)
        return tokens, margin

    def scores(self, tokens: Sequence[int], logits: Tensor, sampling: TokenSampling) -> Tensor:
        """Logits ``[1, vocabulary]`` as upstream changes them before sampling."""
        penalty = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
        warm = [TemperatureLogitsWarper(sampling.temperature)] if sampling.temperature not in (0, 1) else []
        if self.shape.guided:
            seen = [START_OF_SPEECH, *tokens]
            chain = [penalty, *warm]
            if sampling.temperature:
                chain += [MinPLogitsWarper(sampling.min_p), TopPLogitsWarper(sampling.top_p)]
        else:
            seen = tokens or [START_OF_SPEECH]
            chain = list(warm)
            if sampling.temperature and sampling.top_k:
                chain.append(TopKLogitsWarper(sampling.top_k))
            if sampling.temperature and sampling.top_p < 1:
                chain.append(TopPLogitsWarper(sampling.top_p))
            chain.append(penalty)
        return LogitsProcessorList(chain)(torch.tensor([seen]), logits)


def llama(shape: T3Shape) -> LlamaModel:
    """The transformer of Original and Multilingual."""
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=64,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
        },
    )
    return LlamaModel(config)


def gpt2(shape: T3Shape) -> GPT2Model:
    """The transformer of Turbo."""
    config = GPT2Config(
        vocab_size=8, n_positions=8196, n_embd=shape.width, n_layer=shape.layers, n_head=shape.heads
    )
    return GPT2Model(config)
