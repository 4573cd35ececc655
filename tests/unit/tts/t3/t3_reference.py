"""T3 written down plainly: one utterance at a time, Hugging Face's transformers, a loop.

It says the same as ``T3.inference`` and ``T3.inference_turbo`` of chatterbox-tts, which the
parity tests check; the tests beside it hold the vLLM models against it.
"""

from dataclasses import dataclass

import torch
from safetensors.torch import load_file
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

START, STOP = 6561, 6562


@dataclass
class Draw:
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


def greedy(scores):
    return int(scores.argmax())


class Reference:
    """Generates from the rows that :class:`parley.tts.t3.prompt.PromptEncoder` computes."""

    def __init__(self, checkpoint, shape):
        self.shape = shape
        state = load_file(checkpoint)
        self.embedding = state["speech_emb.weight"]
        self.head, self.bias = state["speech_head.weight"], state.get("speech_head.bias")
        self.places = state.get("speech_pos_emb.emb.weight")
        self.model = (llama if shape.guided else gpt2)(shape)
        own = {name.removeprefix("tfmr."): value for name, value in state.items() if name.startswith("tfmr.")}
        own.pop("embed_tokens.weight" if shape.guided else "wte.weight")
        missing, unexpected = self.model.load_state_dict(own, strict=False)
        assert len(missing) == 1, "only the unused embeddings of words are missing"
        assert not unexpected
        self.model.eval()

    @torch.inference_mode()
    def generate(self, prompt, weight, draw, count, choose=greedy):
        """Tokens up to and with the stop token, and the smallest margin of a greedy decision.

        Args:
            prompt: embeddings, as the engine gets them.
            weight: of guidance.
            draw: how scores are made of logits.
            count: tokens at most.
            choose: draws a token from scores [vocabulary].
        """
        width = self.shape.width
        rows = torch.stack(prompt.split(width, -1)) if self.shape.guided else prompt[None]
        output = self.model(inputs_embeds=rows, use_cache=True)
        tokens, margin = [], float("inf")
        for step in range(1, count + 1):
            logits = torch.nn.functional.linear(output.last_hidden_state[:, -1], self.head, self.bias)
            if self.shape.guided:
                logits = logits[:1] + weight * (logits[:1] - logits[1:2])
            scores = self.scores(tokens, logits, draw)[0]
            best = scores.topk(2).values
            margin = min(margin, float(best[0] - best[1]))
            tokens.append(choose(scores))
            if tokens[-1] == STOP:
                break
            row = self.embedding[tokens[-1]]
            if self.shape.guided:
                row = row + self.places[step]
            fed = row.expand(len(rows), 1, width)
            output = self.model(inputs_embeds=fed, past_key_values=output.past_key_values, use_cache=True)
        return tokens, margin

    def scores(self, tokens, logits, draw):
        penalty = RepetitionPenaltyLogitsProcessor(draw.repetition_penalty)
        warm = [TemperatureLogitsWarper(draw.temperature)] if draw.temperature not in (0, 1) else []
        if self.shape.guided:
            seen = [START, *tokens]
            chain = [penalty, *warm]
            if draw.temperature:
                chain += [MinPLogitsWarper(draw.min_p), TopPLogitsWarper(draw.top_p)]
        else:
            seen = tokens or [START]
            chain = list(warm)
            if draw.temperature and draw.top_k:
                chain.append(TopKLogitsWarper(draw.top_k))
            if draw.temperature and draw.top_p < 1:
                chain.append(TopPLogitsWarper(draw.top_p))
            chain.append(penalty)
        return LogitsProcessorList(chain)(torch.tensor([seen]), logits)


def llama(shape):
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


def gpt2(shape):
    config = GPT2Config(
        vocab_size=8, n_positions=8196, n_embd=shape.width, n_layer=shape.layers, n_head=shape.heads
    )
    return GPT2Model(config)
