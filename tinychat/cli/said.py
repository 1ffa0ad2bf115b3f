"""What was said in a recording, as plain text."""

from __future__ import annotations

from collections.abc import Iterator

from tinychat.cli.console import Notices, Results
from tinychat.engine.recorded import Recording
from tinychat.protocol import Generate, ModelReady, TokenEmitted, TurnFinished


def print_said(recording: Recording) -> None:
    """Print it, who speaks and then the text, in the order in which replies were made."""
    results = Results()
    first = True
    for speaker, text in _turns(recording):
        results.text(f"{'' if first else chr(10)}{speaker}:\n{text}\n")
        first = False
    if recording.problem:
        Notices().line(f"note: {recording.problem}")


def _turns(recording: Recording) -> Iterator[tuple[str, str]]:
    """Yield (speaker, text): each question once, each version of a reply."""
    name, asked, told, parts = "model", "", "", list[str]()
    live: int | None = None
    for entry in recording.entries:
        match entry.said:
            case ModelReady(info=info):
                name = info.name
            case Generate():
                if live is not None:
                    yield name, "".join(parts)
                live, parts = entry.said.turn_id, []
                system = "".join(m.text for m in entry.said.messages if m.role == "system")
                if system and system != told:
                    told = system
                    yield "system", system
                history = str([(m.role, m.text) for m in entry.said.messages])
                if history != asked and entry.said.messages:
                    asked = history
                    yield "you", entry.said.messages[-1].text
            case TokenEmitted(turn_id=turn_id, text=text) if turn_id == live:
                parts.append(text)
            case TurnFinished(turn_id=turn_id, text=text) if turn_id == live:
                live = None
                yield name, text
    if live is not None:
        yield name, "".join(parts)
