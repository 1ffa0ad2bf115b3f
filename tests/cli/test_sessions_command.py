"""`tinychat sessions`: what was kept, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ended_command import Command

from tinychat.chats import Tree
from tinychat.chats.session import Session
from tinychat.chats.store import Store, default_path
from tinychat.cli.run import _resumed
from tinychat.errors import TinychatError
from tinychat.protocol import TurnFinished

QUESTION = "What is \x1b[2J [red]markup[/red]\r\nand more?"


def keep(*exchanges: tuple[str, str], title: str = "") -> int:
    tree = Tree("Be brief.")
    for question, answer in exchanges:
        tree.ask(question)
        reply = tree.answer().turn_id
        ended = TurnFinished(reply, "eos", (1, 2), answer, "", 9, 0, 2, 0.1, 0.1, 0.1, 5, "torch")
        tree.finish(ended, "v", "smollm2")
    with Store() as store:
        return store.save(Session(tree.state(), title, "org/smollm2")).session_id


def test_without_chats_nothing_is_made(tinychat: Command) -> None:
    """Would catch: a look at nothing that leaves a file, or that ends in a traceback."""
    for words in ((), ("list",), ("list", "--deleted"), ("search", "x")):
        ended = tinychat("sessions", *words)
        assert (ended.status, ended.stdout) == (0, b"")
        assert ended.stderr.count("\n") == 1
    assert tinychat("sessions", "list", "--json").stdout == b"[]\n"
    for words in (("rename", "1", "x"), ("delete", "1"), ("restore", "1"), ("export", "1")):
        ended = tinychat("sessions", *words)
        assert ended.status == 1
        assert "There is no chat 1" in ended.stderr
    assert not default_path().exists()


def test_list_and_search(tinychat: Command) -> None:
    """Would catch: a list that a terminal obeys, one that scripts can't read, hits without their chat."""
    first = keep((QUESTION, "An answer about Paris."), ("More", "Much"))
    keep(("Hello", "Hi"), title="Greetings")
    ended = tinychat("sessions")
    lines = ended.stdout.decode().splitlines()
    assert [line.split("  ")[2] for line in lines] == ["Greetings", "What is ␛[2J [red]markup[/red] and more?"]
    assert lines[1].endswith("(smollm2, 4 turns)")
    listed = json.loads(tinychat("sessions", "list", "--json").stdout)
    assert (listed[0]["title"], listed[0]["turns"], listed[0]["model"]) == ("Greetings", 2, "org/smollm2")

    ended = tinychat("sessions", "search", "paris about")
    assert ended.stdout.decode().splitlines()[1] == "    An answer about Paris."
    hit = json.loads(tinychat("sessions", "search", "PARIS", "--json").stdout)[0]
    assert (hit["id"], hit["turn"], hit["found"]) == (first, 1, "Paris")
    assert tinychat("sessions", "search", '"') == tinychat("sessions", "search", "NEAR(x y)")


def test_rename_delete_restore(tinychat: Command) -> None:
    """Would catch: a chat that can't be had back, and one that is not gone when it should be."""
    number = str(keep(("Hello", "Hi")))
    assert tinychat("sessions", "rename", number, "Mine").status == 0
    assert b"Mine" in tinychat("sessions", "list").stdout
    ended = tinychat("sessions", "delete", number)
    assert f"tinychat sessions restore {number}" in ended.stderr
    assert tinychat("sessions", "list").stdout == b""
    assert b"Mine" in tinychat("sessions", "list", "--deleted").stdout
    assert tinychat("sessions", "restore", number).status == 0
    assert b"Mine" in tinychat("sessions", "list").stdout
    assert tinychat("sessions", "delete", number, "--forever").status == 0
    assert tinychat("sessions", "restore", number).status == 1


def test_export_and_import(tinychat: Command, tmp_path: Path) -> None:
    """Would catch: an export that can't be imported, or that loses something on the way."""
    number = str(keep((QUESTION, "Yes \ud83e"), title="Mine"))
    exported = tinychat("sessions", "export", number).stdout
    assert tinychat("sessions", "import", stdin=exported).stdout == b"2\n"
    file = tmp_path / "chat.json"
    file.write_bytes(b"\xef\xbb\xbf" + exported.replace(b"\n", b"\r\n"))
    assert tinychat("sessions", "import", str(file)).stdout == b"3\n", "a byte order mark and other line ends are fine"
    with Store() as store:
        assert store.read(1).session == store.read(2).session == store.read(3).session
    ended = tinychat("sessions", "export", number, "--format", "json")
    assert [message["role"] for message in json.loads(ended.stdout)] == ["system", "user", "assistant"]
    ended = tinychat("sessions", "export", number, "--format", "markdown")
    assert ended.stdout.decode().startswith("# Mine\n\n## System\n\nBe brief.\n\n## You\n\nWhat is")
    assert "question marks" in ended.stderr
    assert b"smollm2: Yes" in tinychat("sessions", "export", number, "--format", "text").stdout


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("export", "x"), 2, "ID is 'x', but has to be a whole number"),
        (("export", "0"), 2, "ID is 0, but has to be 1"),
        (("export", "1", "--format", "pdf"), 2, "--format is 'pdf'"),
        (("import", "nowhere.json"), 1, "nowhere.json can't be read"),
        (("delete",), 2, "Missing argument"),
        (("open", "1"), 2, "No such command"),
    ],
)
def test_what_is_wrong_is_a_sentence(tinychat: Command, words: tuple[str, ...], status: int, says: str) -> None:
    """Would catch: a traceback, and a status that scripts misread."""
    ended = tinychat("sessions", *words)
    assert (ended.status, says in ended.stderr) == (status, True), ended.stderr


def test_a_damaged_file_is_a_sentence(tinychat: Command) -> None:
    """Would catch: a traceback of SQLite's."""
    default_path().parent.mkdir(parents=True)
    default_path().write_bytes(b"no database " * 1000)
    ended = tinychat("sessions")
    assert ended.status == 1
    assert "is damaged" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("--resume", "smollm2", "a prompt"), 2, "--resume opens the chat, which needs a terminal"),
        (("--session", "3", "--json"), 2, "--session opens the chat"),
        (("--resume", "--session", "3"), 2, "Give one of them."),
        (("--session", "0"), 2, "--session is 0, but has to be 1"),
    ],
)
def test_words_that_open_a_chat_need_one(tinychat: Command, words: tuple[str, ...], status: int, says: str) -> None:
    """Would catch: a flag that is passed over in silence where there is no screen."""
    ended = tinychat("run", *words)
    assert (ended.status, says in ended.stderr) == (status, True), ended.stderr


def test_which_chat_is_gone_on_with(tinychat: Command) -> None:
    """Would catch: `--resume` that takes the first one, or one that was deleted; a missing one that ends in nothing."""
    del tinychat  # its folders
    with pytest.raises(TinychatError, match="none was kept yet"):
        _resumed(True, None, screen=True)
    assert not default_path().exists()
    first, second = keep(("One", "1")), keep(("Two", "2"))
    assert _resumed(False, None, screen=True) is None
    for last, number, expected in ((True, None, second), (False, first, first)):
        saved = _resumed(last, number, screen=True)
        assert saved is not None
        assert saved.session_id == expected
    with Store() as store:
        store.delete(second)
        assert _resumed(True, None, screen=True) == store.read(first)
        store.delete(first)
    with pytest.raises(TinychatError, match="no chat to go on with"):
        _resumed(True, None, screen=True)
    with pytest.raises(TinychatError, match="no chat 99"):
        _resumed(False, 99, screen=True)
