"""`tinychat sessions`: the chats that were kept."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tinychat.cli import options
from tinychat.cli.console import Notices, Results
from tinychat.cli.piped import decoded, piped_bytes
from tinychat.errors import TinychatError
from tinychat.pictures import one_line

if TYPE_CHECKING:
    from tinychat.chats.store import Store

FORMATS: Final = ("whole", "markdown", "text", "json")

sessions = typer.Typer(
    name="sessions",
    help="List, search, rename, delete, export and import chats.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)

Id = Annotated[int, typer.Argument(parser=options.integer("ID", 1, 2**63 - 1), metavar="ID", help="As listed.")]


@sessions.callback(invoke_without_command=True)
def default(context: typer.Context) -> None:
    """List, search, rename, delete, export and import chats; without a word more: list them.

    `tinychat run --session ID` goes on with one, `tinychat run --resume` with the last.
    """
    if context.invoked_subcommand is None:
        list_()


@sessions.command("list")
def list_(
    deleted: Annotated[bool, typer.Option("--deleted", help="Those that were deleted.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """List the chats, the one that changed last first."""
    store = _store()
    found = [] if store is None else store.summaries(1_000_000, deleted=deleted)
    results = Results()
    if as_json:
        results.json(
            [
                {
                    "id": each.session_id,
                    "title": each.name,
                    "model": each.model,
                    "turns": each.turns,
                    "created": each.created,
                    "changed": each.changed,
                }
                for each in found
            ]
        )
        return
    width = max((len(str(each.session_id)) for each in found), default=0)
    for each in found:
        changed = f"{datetime.fromtimestamp(each.changed):%Y-%m-%d %H:%M}"
        model = one_line(each.model.rpartition("/")[2])
        results.line(f"{each.session_id:>{width}}  {changed}  {one_line(each.name)}  ({model}, {each.turns} turns)")
    if not found:
        Notices().line(
            "There are no deleted chats." if deleted else "There are no chats yet; `tinychat run` begins one."
        )


@sessions.command("search")
def search(
    words: Annotated[str, typer.Argument(parser=options.plain, metavar="WORDS", help="All of them have to be there.")],
    as_json: options.AsJson = False,
) -> None:
    """Find what was said, by parts of words; quotes and signs are looked for as they are."""
    store = _store()
    hits = [] if store is None else store.search(words)
    results = Results()
    if as_json:
        keys = ("title", "role", "before", "found", "after")
        results.json(
            [
                {"id": hit.session_id, "turn": hit.number}
                | dict(zip(keys, (hit.name, hit.role, hit.before, hit.found, hit.after), strict=True))
                for hit in hits
            ]
        )
        return
    for hit in hits:
        results.line(f"{hit.session_id}  {one_line(hit.name)}")
        found = f"\x1b[1m{one_line(hit.found)}\x1b[0m" if results.styled else one_line(hit.found)
        results.own(f"    {one_line(hit.before)}{found}{one_line(hit.after)}\n")
    if not hits:
        Notices().line("Nothing was found.")


@sessions.command("rename")
def rename(
    session_id: Id, title: Annotated[str, typer.Argument(parser=options.plain, metavar="TITLE", help="Empty: none.")]
) -> None:
    """Call a chat otherwise."""
    _kept(session_id).rename(session_id, title)


@sessions.command("delete")
def delete(
    session_id: Id, forever: Annotated[bool, typer.Option("--forever", help="Without a way back.")] = False
) -> None:
    """Delete a chat; `tinychat sessions restore ID` brings it back."""
    store = _kept(session_id)
    if forever:
        store.erase(session_id)
    else:
        store.delete(session_id)
        Notices().line(f"`tinychat sessions restore {session_id}` brings it back.")


@sessions.command("restore")
def restore(session_id: Id) -> None:
    """Bring a deleted chat back."""
    _kept(session_id).restore(session_id)


@sessions.command("export")
def export(
    session_id: Id,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            parser=options.choice("--format", FORMATS),
            metavar="|".join(FORMATS),
            help="All of it, to be imported; or what is on the screen, json as `tinychat prompt --messages` takes it.",
        ),
    ] = "whole",
) -> None:
    """Print a chat."""
    from tinychat.chats import export as forms

    session = _kept(session_id).read(session_id).session
    results = Results()
    if form == "json":
        results.json(forms.messages(session))
        return
    text = {"whole": forms.whole, "markdown": forms.markdown, "text": forms.plain_text}[form](session)
    data = text.encode("utf-8", "replace")
    if data.decode() != text:
        Notices().line("note: characters that are no Unicode (halves of surrogate pairs) became question marks.")
    results.data(data)


@sessions.command("import")
def import_(
    file: Annotated[
        str | None, typer.Argument(parser=options.plain, metavar="FILE", help="What export printed; default: stdin.")
    ] = None,
) -> None:
    """Take a chat that was exported, as a new one; print its ID."""
    from tinychat.chats.export import read_whole
    from tinychat.chats.store import Store

    name = "stdin" if file is None else file
    try:
        data = piped_bytes() if file is None else Path(file).read_bytes()
    except OSError as error:
        raise TinychatError(f"{name} can't be read: {error.strerror or error}.") from None
    session = read_whole(decoded(data, name), name)
    with Store() as store:
        Results().line(str(store.save(session).session_id))


def _store() -> Store | None:
    """Open the chats; None where there are none yet: looking makes no file."""
    from tinychat.chats.store import Store, default_path

    return Store() if default_path().exists() else None


def _kept(session_id: Any) -> Store:
    """Open the chats to do something with one.

    Raises:
        TinychatError: There are none.
    """
    store = _store()
    if store is None:
        raise TinychatError(f"There is no chat {session_id}: none was kept yet.", "`tinychat run` begins one.")
    return store
