"""Why a verb did not do what was asked; the type carries the exit code (docs/tasks/operations.md, "Exit codes")."""

from __future__ import annotations


class PluginError(Exception):
    """One line for a person."""

    exit_code = 1


class OperationFailedError(PluginError):
    """The operation was rejected, or failed."""


class UsageError(PluginError):
    """The command line cannot be meant so."""

    exit_code = 2


class NotFoundError(PluginError):
    """There is no such object, or the cluster does not know the kind."""

    exit_code = 3


class ForbiddenError(PluginError):
    """We are not who may do this."""

    exit_code = 4


class CannotConnectError(PluginError):
    """No usable kubeconfig, or nobody answers where it points to."""

    exit_code = 5


class RefusedError(PluginError):
    """The API server refused the object, or could not serve the request."""

    exit_code = 6


class NotConfirmedError(PluginError):
    """The name that was typed is not the group's: nothing was done."""

    exit_code = 7


class WaitedTooLongError(PluginError):
    """--timeout passed; what was asked for goes on."""

    exit_code = 8


class NotProvedError(PluginError):
    """What is asked for would rest on an operator's last word, and nothing current proves that one is alive, or gone."""

    exit_code = 9
