"""An agent without a server that says what a test sets."""

from fake_agent import serve

from parley.protocol import decode_message


class Agent:
    """Answers frames with the events that a test sets: for audio in turn, for messages by their type."""

    def __init__(self):
        self.hears = iter([])
        self.answers = {}
        self.messages = []
        self.stream = None

    async def __call__(self, stream):
        self.stream = stream
        await serve(stream, self._on_frame)

    def _on_frame(self, frame):
        events = next(self.hears, ()) if len(frame.audio) else ()
        if frame.message:
            message = decode_message(frame.message)
            self.messages.append(message)
            events = next(self.answers.get(type(message), iter(())), ())
        for event in events:
            self.stream.say(event)

    def received(self, kind):
        return [message for message in self.messages if isinstance(message, kind)]
