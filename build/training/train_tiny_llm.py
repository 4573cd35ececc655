"""Train the tiny Qwen3 of ``models/tiny-qwen3``: a voice assistant that calls tools.

    nice .venv-export/bin/python build/training/train_tiny_llm.py --seed 1 --steps 6000

A step takes about a second on one CPU core with AMX. The model is saved every few minutes, and
``--resume`` continues a run that was cut short. Needs torch, transformers and tokenizers.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import torch
from torch.nn import functional
from transformers import (
    AutoTokenizer,
    DynamicCache,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tiny.chat_tokenizer import MAX_LENGTH, train_tokenizer
from tiny.dialogs import dialogue
from tiny.packing import Batch, Row, TreeEncoder, random_batch
from tiny.settings import setting

DEFAULT_OUT = Path(__file__).parents[2] / "models" / "tiny-qwen3"

# From this share of the steps on: the longest dialogue in turns, and the tokens of a row.
CURRICULUM = ((0.0, 2, 400), (0.1, 4, 400), (0.3, 12, 600), (0.75, 30, 1000))
PEAK_RATE = 3e-3
WARM_UP_STEPS = 60
TOKENS_PER_STEP = 4000
SETTINGS_PER_STEP = 2
SAVE_SECONDS = 300
LOG_STEPS = 50


def new_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """An untrained Qwen3 of 1.3 million parameters."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=160,
        intermediate_size=480,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_LENGTH,
        rope_theta=10_000.0,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model


def save(model: Qwen3ForCausalLM, out: Path) -> None:
    """Write the weights in bfloat16."""
    own = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}  # tied
    weights = {name: value.to(torch.bfloat16) for name, value in own.items()}
    model.save_pretrained(out, state_dict=weights)


def _optimizers(model: Qwen3ForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms; one rate fits both."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if not any(p is matrix for matrix in matrices)]
    return [
        torch.optim.Muon(matrices, lr=PEAK_RATE, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def _loss(model: Qwen3ForCausalLM, batch: Batch) -> torch.Tensor:
    """The loss summed over the replies' tokens."""
    cache = DynamicCache(config=model.config)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        if batch.setting.numel():
            model.model(batch.setting, past_key_values=cache, use_cache=True)
            cache.batch_repeat_interleave(len(batch.ids))
        hidden = model.model(
            batch.ids,
            attention_mask=batch.mask,
            position_ids=batch.positions,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        predicts = torch.roll(batch.learned, -1, dims=1)
        logits = model.lm_head(hidden[predicts])
    return functional.cross_entropy(logits.float(), batch.ids[batch.learned], reduction="sum")


class _Progress:
    """What has been done so far, for the log."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._steps = self._tokens = self._learned = 0
        self._loss = 0.0

    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def add(self, batches: list[Batch], loss: float) -> None:
        self._steps += 1
        self._tokens += sum(batch.ids.numel() for batch in batches)
        self._learned += sum(int(batch.learned.sum()) for batch in batches)
        self._loss += (loss - self._loss) * max(1 / self._steps, 0.02)
        if self._steps % LOG_STEPS == 0:
            print(
                f"{self.seconds():5.0f} s  step {self._steps}  loss {self._loss:.4f}  "
                f"{self._tokens / self.seconds():.0f} tokens/s, "
                f"{self._learned / self.seconds():.0f} of them learned",
                flush=True,
            )


def train(out: Path, steps: int, seed: int, done: int) -> None:
    """Train for ``steps`` steps and leave the model in ``out``.

    ``done`` is how many of them the model in ``out`` has been trained for; 0 begins anew.
    """
    torch.manual_seed(seed)
    rng = random.Random(f"train {seed} {done}")
    if done:
        tokenizer = AutoTokenizer.from_pretrained(out)
        model = Qwen3ForCausalLM.from_pretrained(out, dtype=torch.float32)
    else:
        tokenizer = train_tokenizer(seed)
        tokenizer.save_pretrained(out)
        model = new_model(tokenizer)
        save(model, out)
    encoder = TreeEncoder(tokenizer)
    _check(encoder, rng)
    optimizers = _optimizers(model)
    progress, saved = _Progress(), 0.0
    for step in range(done, steps):
        share = step / steps
        for optimizer in optimizers:
            warm = min(1.0, (step + 1 - done) / WARM_UP_STEPS)
            optimizer.param_groups[0]["lr"] = PEAK_RATE * warm * min(1.0, 1.02 - share)
        _, most_turns, size = max(phase for phase in CURRICULUM if share >= phase[0])
        rows = TOKENS_PER_STEP // (SETTINGS_PER_STEP * size)
        batches = [random_batch(encoder, rng, most_turns, size, rows) for _ in range(SETTINGS_PER_STEP)]
        progress.add(batches, _step(model, optimizers, batches))
        if progress.seconds() - saved > SAVE_SECONDS:
            save(model, out)
            saved = progress.seconds()
    save(model, out)


def _check(encoder: TreeEncoder, rng: random.Random) -> None:
    """Make sure that the prompts are those of the chat template."""
    for turns in range(1, 9):
        chosen = setting(rng)
        row = Row()
        for _ in range(3):
            encoder.check(row, dialogue(rng, turns, chosen))


def _step(model: Qwen3ForCausalLM, optimizers: list[torch.optim.Optimizer], batches: list[Batch]) -> float:
    learned = sum(int(batch.learned.sum()) for batch in batches)
    total = 0.0
    for batch in batches:
        loss = _loss(model, batch) / learned
        torch.autograd.backward(loss)
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return total


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--resume", type=int, default=0, help="continue after this many of the steps")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    train(args.out, args.steps, args.seed, args.resume)


if __name__ == "__main__":
    main()
