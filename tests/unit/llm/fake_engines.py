"""Engines without a model."""

import asyncio

from parley.llm.engine import Progress


class ScriptedEngine:
    """Writes the reports it is given; a report of ``None`` waits until ``go`` is set or abort."""

    def __init__(self, *reports):
        self.reports = reports
        self.requests = []
        self.refusal = None  # of requests with a grammar
        self.aborted = []
        self.closed = []
        self.go = asyncio.Event()
        self.running = asyncio.Event()
        self._stop = asyncio.Event()

    async def generate(self, request):
        self.requests.append(request)
        self.running.set()
        try:
            if self.refusal and request.structural_tag:
                raise self.refusal
            for report in self.reports:
                if report is None:
                    waits = [asyncio.ensure_future(event.wait()) for event in (self.go, self._stop)]
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                    for wait in waits:
                        wait.cancel()
                    if self._stop.is_set():
                        yield Progress(finish_reason="abort")
                        return
                elif isinstance(report, Exception):
                    raise report
                else:
                    yield report
        finally:
            self.closed.append(request.request_id)

    async def abort(self, request_id):
        self.aborted.append(request_id)
        self._stop.set()

    async def shutdown(self):
        self._stop.set()


class WordTokenizer:
    """One token per word of the rendered conversation; ``added`` are tokens of the template."""

    chat_template = None

    def __init__(self, *added):
        self._added = added
        self.conversation = None
        self.options = None

    def apply_chat_template(self, conversation, **options):
        self.conversation, self.options = conversation, options
        if conversation and conversation[0]["content"] == "raise":
            raise TypeError("the template says no")
        return list(range(sum(len(message["content"].split()) for message in conversation)))

    def encode(self, text, *, add_special_tokens):
        assert not add_special_tokens
        return text.split()

    def get_added_vocab(self):
        return {token: number for number, token in enumerate(self._added)}


class Letters(WordTokenizer):
    """A token for each character."""

    chat_template = "<|im_end|>"
    rendered = 0

    def apply_chat_template(self, conversation, **_):
        self.rendered += 1
        return [ord(one) for message in conversation for one in f"{message['content']}|"]

    def encode(self, text, *, add_special_tokens):
        return list(map(ord, text))
