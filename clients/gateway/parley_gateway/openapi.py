"""The OpenAPI document: what FastAPI knows, and the structs that it does not."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from parley_gateway.apis.agent import Agent
from parley_gateway.apis.deepgram.speech import SpeakBody
from parley_gateway.apis.openai.chat_request import ChatRequest
from parley_gateway.apis.openai.speech import SpeechRequest
from parley_gateway.apis.sessions.messages import (
    SessionCreated,
    SessionOptions,
    SessionStatus,
    ToolsAccepted,
    ToolsRequest,
)
from parley_gateway.apis.tokens import TokenAnswer, TokenRequest
from parley_gateway.schemas import add_components

_KINDS = (
    Agent,
    SessionOptions,
    SessionCreated,
    SessionStatus,
    ToolsRequest,
    ToolsAccepted,
    ChatRequest,
    SpeakBody,
    SpeechRequest,
    TokenRequest,
    TokenAnswer,
)
# Nobody is asked here.
_OPEN = ("/healthz", "/readyz", "/health", "/ready")


def complete_openapi(app: FastAPI, *, authenticated: bool) -> None:
    """Let ``/openapi.json`` describe the structs too, and how one says who one is.

    Args:
        app: The application.
        authenticated: Whether anybody is asked.
    """
    of_fastapi = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = add_components(of_fastapi(), _KINDS)
            if authenticated:
                document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
                document["security"] = [{"key": []}]
                for path in _OPEN:
                    document["paths"][path]["get"]["security"] = []
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
