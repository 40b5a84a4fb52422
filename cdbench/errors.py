"""Every failure a user can cause or meet, each with the exit code it ends the process with.

The command line prints ``cdbench: what: why; what to do`` for these and nothing else; any other
exception is an internal error (exit code 4).
"""

from __future__ import annotations


class CdbenchError(Exception):
    """Base of the errors that end in one line on stderr rather than a traceback."""

    exit_code = 4


class UsageError(CdbenchError):
    """A flag, a configuration key or an input file is wrong or cannot be read."""

    exit_code = 2


class OutputError(CdbenchError):
    """A file can no longer be written, as on a full disk; what was whole before is kept."""

    exit_code = 4


class InvalidRunError(CdbenchError):
    """The run finished, but its numbers must not be used."""

    exit_code = 3


class RequestRefused(CdbenchError):
    """One request can never be served; the others go on."""

    exit_code = 3


class WorkerError(CdbenchError):
    """A process that measures for this one died, hung or answered nonsense."""

    exit_code = 4
