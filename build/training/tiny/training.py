"""What the trainings of the tiny models share: options, a budget, a checkpoint, and the learning rate."""

from __future__ import annotations

import argparse
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

_WARM_UP_STEPS = 200
_REPORT_EVERY = 100
_SAVE_EVERY = 500


@dataclass(frozen=True)
class Budget:
    """When training ends: after ``steps``, or without them after ``minutes``, counted over all runs."""

    minutes: float
    steps: int | None = None

    def spent(self, step: int, seconds: float) -> float:
        """The share of the budget that is used up, 0 to 1."""
        return min(1.0, step / self.steps if self.steps else seconds / 60 / self.minutes)


def make_parser(text: str | None, work: Path, out: Path, *, minutes: float) -> argparse.ArgumentParser:
    """The options of a program that trains; the arguments are their defaults."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=work, help="clips, checkpoint")
    parser.add_argument("--out", type=Path, default=out, help="exported model")
    parser.add_argument("--minutes", type=float, default=minutes, help="length (default: %(default)s)")
    parser.add_argument("--steps", type=int, help="length of the training in steps, instead of --minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2, help="synthesizers at a time")
    return parser


class Training(ABC):
    """Trains modules with AdamW; a stopped run continues from its checkpoint."""

    def __init__(
        self, checkpoint: Path, modules: Mapping[str, nn.Module], *, peak: float, least: float, **options: Any
    ) -> None:
        self._file = checkpoint
        self._modules = modules
        self._peak = peak
        self._least = least
        weights = [weight for module in modules.values() for weight in module.parameters()]
        self._optimizer = torch.optim.AdamW(weights, lr=peak, **options)
        self._step = 0
        self._seconds = 0.0
        if checkpoint.exists():
            state = torch.load(checkpoint, weights_only=True)
            for name, part in self._parts().items():
                part.load_state_dict(state[name])
            self._step, self._seconds = state["step"], state["seconds"]

    def _parts(self) -> dict[str, Any]:
        return {**self._modules, "optimizer": self._optimizer}

    @abstractmethod
    def _loss(self) -> tuple[torch.Tensor, tuple[float, ...]]:
        """The loss of the next batch, and what is reported of it."""

    def run(self, budget: Budget) -> None:
        """Train until the budget is spent."""
        reported = []
        while (spent := budget.spent(self._step, self._seconds)) < 1.0:
            start = time.monotonic()
            warm = min(1.0, (self._step + 1) / _WARM_UP_STEPS)
            fallen = self._least + (1 - self._least) * 0.5 * (1 + math.cos(math.pi * spent))
            for group in self._optimizer.param_groups:
                group["lr"] = self._peak * warm * fallen
            loss, figures = self._loss()
            self._optimizer.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(next(iter(self._modules.values())).parameters(), 1.0)
            self._optimizer.step()
            reported.append(figures)
            self._step += 1
            self._seconds += time.monotonic() - start
            if self._step % _REPORT_EVERY == 0:
                means = " ".join(f"{mean:.3f}" for mean in np.mean(reported, axis=0))
                print(f"step {self._step} {self._seconds:.0f} s loss {means}", flush=True)
                reported.clear()
            if self._step % _SAVE_EVERY == 0:
                self._save()
                self._on_saved()
        self._save()

    def _on_saved(self) -> None:  # noqa: B027 - not every training reports more
        """Called now and then, after the checkpoint was written."""

    def _save(self) -> None:
        state = {name: part.state_dict() for name, part in self._parts().items()}
        unfinished = self._file.with_suffix(".tmp")
        torch.save({**state, "step": self._step, "seconds": self._seconds}, unfinished)
        unfinished.replace(self._file)
