"""Why the embedded server could not be started, in words that say what to do.

::

    LauncherError (RuntimeError)
    ├── SetupIncompleteError      a package, library or file is missing
    ├── SettingsError             a setting names something that there is not
    ├── ToolsFileError            the file of the server's own tools cannot be used
    ├── PortBusyError
    ├── AlreadyRunningError       another server uses the same state folder
    ├── SharedMemoryTooSmallError
    ├── ModelFailedError          carries the model's own error
    ├── ServerDiedError
    │   └── ServerCrashedError
    ├── RestartLimitError         the server was started again too often
    ├── NotReadyError             no answer to the canary in time
    └── StartInterruptedError     a signal came while starting
"""

from __future__ import annotations


class LauncherError(RuntimeError):
    """Base class; the message is one paragraph for a person at a terminal."""


class SetupIncompleteError(LauncherError):
    """Something that ``make setup`` provides is missing."""


class SettingsError(LauncherError):
    """A setting of the caller names something that there is not; the message says what there is."""


class ToolsFileError(LauncherError):
    """The file of the server's own tools cannot be used; the message says what is wrong in it."""


class PortBusyError(LauncherError):
    """Another program listens on a port that the server needs."""


class AlreadyRunningError(LauncherError):
    """A server with the same state folder is alive."""


class SharedMemoryTooSmallError(LauncherError):
    """The shared memory file system cannot hold the models' regions."""


class ModelFailedError(LauncherError):
    """At least one model did not load."""


class ServerDiedError(LauncherError):
    """The server ended although nobody asked it to."""


class ServerCrashedError(ServerDiedError):
    """The server ended by a fault of its own (SIGABRT, SIGSEGV, SIGBUS)."""


class RestartLimitError(LauncherError):
    """The server failed again and again, and is not started any more."""


class NotReadyError(LauncherError):
    """The server did not answer the canary before the deadline."""


class StartInterruptedError(LauncherError):
    """The start was given up because a stop was requested."""
