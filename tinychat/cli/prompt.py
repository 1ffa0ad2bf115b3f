"""`tinychat prompt`: the exact text a model is fed for a conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from tinychat.cli import options
from tinychat.cli.console import Notices, Results
from tinychat.cli.files import card_of
from tinychat.cli.piped import decoded, piped_bytes
from tinychat.cli.vocabulary import vocabulary_of
from tinychat.errors import TinychatError
from tinychat.protocol import Message

_ROLES: Final = ("system", "user", "assistant")


def prompt(
    model: options.Model,
    messages: Annotated[
        str,
        typer.Option(
            "--messages", parser=options.plain, metavar="FILE", help='A JSON list of {"role", "content"}; - is stdin.'
        ),
    ],
    ids: Annotated[bool, typer.Option("--ids", help="Print the ids, as a JSON list.")] = False,
    template: Annotated[
        str | None,
        typer.Option(
            "--template", parser=options.plain, metavar="FILE", help="A Jinja template in place of the model's own."
        ),
    ] = None,
    generation_prompt: Annotated[
        bool,
        typer.Option(" /--no-generation-prompt", help="Leave out the beginning of the reply.", show_default=False),
    ] = True,
) -> None:
    """Print the exact text a model is fed.

    For a conversation, its reply's beginning included. Needs no weights.
    """
    card = card_of(model)
    conversation = _conversation(_read(messages), messages)
    from tinychat.engine.prompt import render
    from tinychat.text.chat_template import ChatTemplate

    vocabulary = vocabulary_of(card)
    tokenizer = vocabulary.tokenizer
    if template is not None:
        chosen = ChatTemplate(decoded(_read(template), template), tokenizer.special_tokens, name=template)
    else:
        chosen = vocabulary.own_template(card) or ChatTemplate.transcript()
    rendered = render(tokenizer, chosen, conversation, add_generation_prompt=generation_prompt)
    notices = Notices()
    for notice in rendered.notices:
        notices.line(f"note: {notice}")
    results = Results()
    if ids:
        results.json(list(rendered.ids))
    else:
        results.text(rendered.text + "\n" * results.terminal)


def _read(file: str) -> bytes:
    if file == "-":
        return piped_bytes()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise TinychatError(f"{file} can't be read: {error.strerror or error}.", "Check the path.") from None


def _conversation(data: bytes, file: str) -> list[Message]:
    """Read the messages.

    Raises:
        TinychatError: It isn't a conversation; the sentence says where.
    """
    place = "stdin" if file == "-" else file
    try:
        entries = json.loads(decoded(data, place))
    except (ValueError, RecursionError) as error:
        raise TinychatError(f"{place} is not JSON: {error}.") from None
    if not isinstance(entries, list):
        raise TinychatError(f'{place} has to hold a JSON list of {{"role", "content"}}.')
    return [_message(entry, f"message {number} of {place}") for number, entry in enumerate(entries, start=1)]


def _message(entry: object, place: str) -> Message:
    if not isinstance(entry, dict) or set(entry) != {"role", "content"}:
        held = f"the keys {', '.join(map(repr, entry)) or 'none'}" if isinstance(entry, dict) else repr(entry)
        raise TinychatError(f"{_first_up(place)} holds {held}, but has to hold role and content.")
    if entry["role"] not in _ROLES:
        raise TinychatError(f"The role of {place} is {entry['role']!r}, but has to be one of {', '.join(_ROLES)}.")
    if not isinstance(entry["content"], str):
        raise TinychatError(f"The content of {place} is {entry['content']!r}, but has to be a text.")
    return Message(entry["role"], entry["content"])


def _first_up(text: str) -> str:
    return text[:1].upper() + text[1:]
