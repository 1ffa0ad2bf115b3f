"""One reply on stdout: as plain text, or as JSON, an object a line."""

from __future__ import annotations

from typing import Any, Final, Protocol

import typer

from tinychat.cli.console import Notices, Results
from tinychat.cli.ending import Interruption
from tinychat.cli.headless import Headless
from tinychat.protocol import Generate, Limits, LoadModel, Message, ModelReady, TokenEmitted, TurnFinished

_TOP: Final = 5
"""Alternatives of a token under --json."""


def print_reply(
    load: LoadModel,
    text: str,
    *,
    system: str,
    limits: Limits,
    think: bool | None,
    raw: bool,
    as_json: bool,
    trace: str | None = None,
    record: str | None = None,
) -> None:
    """Load a model, have it answer `text`, and print the reply as it comes; write each token to the file `trace`, and
    all that passes to `record`.

    Raises:
        TinychatError: It can't be loaded, or the reply failed, or a file can't be written; what was said has been
            printed.
        typer.Exit: The person stopped it; the status says how.
    """
    results, notices = Results(), Notices()
    messages = (Message("system", system),) if system else ()
    with Headless(trace, record) as headless:
        ready = headless.load(load)
        if ready.info.format == "base" and not raw:
            notices.line(f"note: {ready.info.name} is a base model: continues a transcript; --raw continues the text.")
        command = Generate(
            turn_id=1,
            messages=(*messages, Message("user", text)),
            sampler=ready.sampler,
            limits=limits,
            detail="full" if as_json else "none" if record is None else "basic",
            raw=raw,
            think=think,
        )
        printer: Printer = Json(results) if as_json else Plain(results)
        printer.ready(ready)
        with Interruption() as interruption:
            for event in headless.reply(command, interruption):
                if isinstance(event, TokenEmitted):
                    printer.token(event)
                else:
                    printer.done(event)
                    if why := ending(event, ready, limits):
                        notices.line(f"note: {why}")
        if interruption.status:
            raise typer.Exit(interruption.status)


class Printer(Protocol):
    """What prints a reply."""

    def ready(self, ready: ModelReady) -> None:
        """The model is loaded."""

    def token(self, token: TokenEmitted) -> None:
        """A token was chosen."""

    def done(self, finished: TurnFinished) -> None:
        """The reply is complete."""


class Plain:
    """The text alone, without thinking, and a newline in the end."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._printed = 0

    def ready(self, ready: ModelReady) -> None:
        """Print nothing."""

    def token(self, token: TokenEmitted) -> None:
        """Print what may be shown now."""
        if token.text:
            self._results.text(token.text)
            self._printed += len(token.text)

    def done(self, finished: TurnFinished) -> None:
        """Print what was held back."""
        self._results.text(f"{finished.text[self._printed :]}\n")


class Objects(Protocol):
    """What takes objects, one a line."""

    def json(self, value: dict[str, Any]) -> None:
        """Print one."""


class Json:
    """Three kinds of objects: ready once, a token each, done in the end. Scripts rely on their keys."""

    def __init__(self, results: Objects) -> None:
        self._results = results

    def ready(self, ready: ModelReady) -> None:
        """Print what was loaded."""
        info = ready.info
        self._results.json(
            {
                "type": "ready",
                "model": info.name,
                "arch": info.architecture,
                "dtype": info.dtype,
                "head_dtype": info.head_dtype,
                "parameters": info.parameters,
                "context": info.context,
                "weights_bytes": info.weights_bytes,
            }
        )

    def token(self, token: TokenEmitted) -> None:
        """Print a token with what else could have been said."""
        self._results.json(
            {
                "type": "token",
                "id": token.token_id,
                "text": token.text,
                "logprob": token.logprob,
                "rank": token.rank,
                "entropy": token.entropy,
                "top": [
                    [other.token_id, other.piece.decode("utf-8", "replace"), other.probability]
                    for other in token.alternatives[:_TOP]
                ],
            }
        )

    def done(self, finished: TurnFinished) -> None:
        """Print the whole of it and what it cost."""
        done: dict[str, Any] = {
            "type": "done",
            "reason": finished.reason,
            "prompt_tokens": finished.prompt_tokens,
            "reused_tokens": finished.reused_tokens,
            "new_tokens": finished.new_tokens,
            "ttft_s": finished.first_token_seconds,
            "prefill_tok_s": finished.prefill_rate,
            "decode_tok_s": finished.decode_rate,
            "seed": finished.seed,
            "kernel": finished.kernel,
            "drafted": finished.drafted,
            "accepted": finished.accepted,
            "ids": list(finished.ids),
            "text": finished.text,
        }
        self._results.json(done)


def ending(finished: TurnFinished, ready: ModelReady, limits: Limits) -> str:
    """Return what there is to say about a reply's end, "" for one that the model or the person chose."""
    if finished.reason == "context":
        return f"The context of {ready.info.context:,} tokens is full; the reply stops there."
    if finished.reason == "length" and limits.max_tokens is None:
        return f"A base model's reply stops at {ready.info.max_tokens} tokens; --max-tokens sets another limit."
    return ""
