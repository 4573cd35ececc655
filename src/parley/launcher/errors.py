"""Why the embedded server cannot be started or kept up."""

from __future__ import annotations


class LauncherError(RuntimeError):
    """Why the server could not be started or kept up: one paragraph that names the remedy."""


class SetupIncompleteError(LauncherError):
    """A package, library or file that ``make setup`` provides is missing."""


class LauncherSettingsError(LauncherError):
    """A setting names a profile or model that is not there or not loaded; the message has those that are."""


class ToolsFileError(LauncherError):
    """The file of the server's own tools cannot be used."""


class PortBusyError(LauncherError):
    """Another program listens on a port that the server needs."""


class AlreadyRunningError(LauncherError):
    """Another server uses the same state folder."""


class SharedMemoryTooSmallError(LauncherError):
    """The shared memory file system cannot hold the models' regions."""


class ModelFailedError(LauncherError):
    """At least one model did not load; carries the model's own error."""


class ServerDiedError(LauncherError):
    """The server ended without a request to stop."""


class ServerCrashedError(ServerDiedError):
    """The server ended by SIGABRT, SIGSEGV or SIGBUS."""


class RestartLimitError(LauncherError):
    """The server was started again too often."""


class NotReadyError(LauncherError):
    """The server did not answer the canary before the deadline."""


class StartInterruptedError(LauncherError):
    """The start was given up because a stop was requested."""
