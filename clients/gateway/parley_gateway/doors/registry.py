"""The doors, one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from fastapi import APIRouter

from parley_gateway.doors import operations
from parley_gateway.gateway import Gateway

Door: TypeAlias = Callable[[Gateway], APIRouter]

DOORS: tuple[Door, ...] = (operations.routes,)
