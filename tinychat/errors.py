"""The few exceptions a person may see. Each carries what happened, and what to do about it."""

from __future__ import annotations


class TinychatError(Exception):
    """Something could not be done (exit status 1)."""

    def __init__(self, summary: str, remedy: str = "") -> None:
        """Store the two sentences.

        Args:
            summary: What happened, to what: one plain sentence that names the file and the number.
            remedy: What to do now; empty where nothing can be done.
        """
        super().__init__(f"{summary} {remedy}".strip())
        self.summary = summary
        self.remedy = remedy


class UsageError(TinychatError):
    """The words of a command are wrong: an unknown flag, a number out of range (exit status 2)."""


class ModelNotFound(TinychatError):
    """No alias, file, folder or repository goes by this name."""


class DownloadError(TinychatError):
    """A file could not be fetched: no network, no such repository, gated, a wrong hash, no space."""


class Cancelled(TinychatError):
    """The person stopped it; nothing went wrong."""


class CheckpointError(TinychatError):
    """A model file is missing, truncated, corrupt, or not what it says it is."""


class UnsupportedModel(TinychatError):
    """The file is sound, but holds an architecture, a tensor type or a feature tinychat doesn't know."""


class OutOfMemory(TinychatError):
    """What was asked for doesn't fit into this machine; the sentence has the numbers."""


class TemplateError(TinychatError):
    """A chat template can't be compiled or refused a conversation; the sentence has the line."""


class PromptTooLong(TinychatError):
    """The conversation has more tokens than the context holds."""
