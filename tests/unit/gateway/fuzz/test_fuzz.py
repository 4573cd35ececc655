"""Fuzzed requests and WebSocket messages: no crash, no hang, no leak, and errors with stable codes."""

import math
import os
import re
from collections import Counter
from contextlib import suppress

import httpx
import pytest
import schemathesis
from fuzz_messages import BODIES, MESSAGES, TEMPLATES, bodies_of, messages_of
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance

EXAMPLES = 20 if "PARLEY_FUZZ_MESSAGES" not in os.environ else 1_000
AT_ONCE = 40
OF_EACH = math.ceil(MESSAGES / len(TEMPLATES))
LISTS = math.ceil(OF_EACH / AT_ONCE)
MOST_GROWTH = 48 * 1024 * 1024
"""Bytes; what allocators keep. A leak of one frame's buffers per connection would be far more."""
CONTENT_TYPES = [
    "application/json", "application/sdp", "audio/wav", "audio/l16", "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x", "multipart/form-data; boundary=" + "x" * 5_000, "multipart/form-data",
    "multipart/form-data; " + "a=" * 4_000, "text/plain; charset=nonsense", "",
]  # fmt: skip
CODE = re.compile(r"[A-Za-z][A-Za-z0-9_ ]*")


def judge(fuzzed, response):
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        body = response.json()
        error = body.get("error", body)
        code = error.get("code") or error.get("err_code") or error.get("type")
        assert isinstance(code, str), body
        assert CODE.fullmatch(code), body
    assert not fuzzed.faults.seen, "\n".join(fuzzed.faults.seen)


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_requests(fuzzed, mode):
    described = schemathesis.openapi.from_url(f"{fuzzed.url}/openapi.json")
    asked = Counter()

    def ask(case):
        response = case.call(timeout=20)
        case.validate_response(response, checks=[not_a_server_error, response_schema_conformance])
        judge(fuzzed, response)
        asked[case.operation.label] += 1

    for result in described.get_all_operations():
        cases = result.ok().as_strategy(generation_mode=mode)
        # Where nothing is asked for, nothing can be wrong.
        with suppress(Unsatisfiable):
            settings(settings.get_profile("gateway"), max_examples=EXAMPLES)(given(cases)(ask))()
    assert len(asked) >= 6


@pytest.mark.parametrize("path", list(BODIES))
def test_bodies(fuzzed, path):
    """Also of what the document does not describe."""

    @settings(settings.get_profile("gateway"), max_examples=EXAMPLES)
    @given(body=bodies_of(path), kind=st.sampled_from(CONTENT_TYPES))
    def ask(body, kind):
        raw = body if isinstance(body, bytes) else body.encode("utf-8", "surrogatepass")
        judge(fuzzed, http.post(path, content=raw, headers={"Content-Type": kind}))

    with httpx.Client(base_url=fuzzed.url, timeout=20) as http:
        ask()


def test_no_request_leaves_a_task(fuzzed):
    fuzzed.settle()


@pytest.mark.parametrize("api", list(TEMPLATES))
def test_messages_of_an_api(fuzzed, api):
    @settings(settings.get_profile("gateway"), max_examples=LISTS)
    @given(st.lists(messages_of(api), min_size=AT_ONCE, max_size=AT_ONCE))
    def drive(messages):
        fuzzed.drive(api, messages)

    before = fuzzed.received
    drive()
    fuzzed.settle()
    assert fuzzed.received - before >= OF_EACH


@pytest.mark.parametrize("api", list(TEMPLATES))
def test_floods_of_an_api(fuzzed, api):
    @settings(settings.get_profile("gateway"), max_examples=5)
    @given(st.lists(messages_of(api), min_size=AT_ONCE, max_size=AT_ONCE))
    def drive(messages):
        fuzzed.drive(api, messages, flood=True)

    drive()
    fuzzed.settle()


def test_memory_does_not_grow(fuzzed):
    def drive(count):
        @settings(settings.get_profile("gateway"), max_examples=count)
        @given(st.lists(messages_of("sessions"), min_size=AT_ONCE, max_size=AT_ONCE))
        def drive(messages):
            fuzzed.drive("sessions", messages)

        drive()
        fuzzed.settle()
        return fuzzed.memory()

    before = drive(10)
    assert drive(20) - before < MOST_GROWTH
