"""Failures that a person reads: `node: what: got X, expected Y`, a hint, and an exit code."""

from __future__ import annotations


class OpsError(Exception):
    """A failure with everything its reader needs; the command line turns it into text or JSON.

    `node` is a node's name, a file's path or "" when neither applies; `what` is the thing looked
    at; `message` says what was got and what was expected; `hint` is the next command to type.
    """

    exit_code = 1

    def __init__(self, what: str, message: str, *, hint: str = "", node: str = "") -> None:
        super().__init__(message)
        self.node, self.what, self.message, self.hint = node, what, message, hint

    def __str__(self) -> str:
        return ": ".join(part for part in (self.node, self.what, self.message) if part)

    def on(self, node: str) -> OpsError:
        """The same error, naming its node where it did not yet."""
        self.node = self.node or node
        return self


class UsageError(OpsError):
    """The command line, inventory, profile or playbook is wrong; nothing was touched."""

    exit_code = 2


class Refused(OpsError):
    """Preflight or the lock said no; nothing was touched."""

    exit_code = 3


class Unreachable(Refused):
    """The node could not be reached or logged in to, or its link was lost."""


class Failed(OpsError):
    """A step or gate failed; the node is put back."""


class Unproven(OpsError):
    """The node could not be shown to serve what it served before: a person is needed."""

    exit_code = 4
