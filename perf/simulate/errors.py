"""What can be wrong before a conversation begins."""


class ScenarioError(ValueError):
    """A scenario is missing, not valid, or asks for something that is not there."""


class RecordingNotFoundError(ScenarioError):
    """A recording that is not part of the project has not been brought yet."""
