"""`tinychat sessions`: what was kept, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ended_command import Command

from tinychat.chats import Tree
from tinychat.chats.session import Session
from tinychat.chats.store import Store, default_path
from tinychat.protocol import TurnFinished

QUESTION = "What is \x1b[2J [red]markup[/red]\r\nand more?"


@pytest.fixture
def chats(tinychat: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, with chats of the test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tinychat


def keep(*exchanges: tuple[str, str], title: str = "") -> int:
    tree = Tree("Be brief.")
    for question, answer in exchanges:
        tree.ask(question)
        reply = tree.answer().turn_id
        ended = TurnFinished(reply, "eos", (1, 2), answer, "", 9, 0, 2, 0.1, 0.1, 0.1, 5, "torch")
        tree.finish(ended, "v", "smollm2")
    with Store() as store:
        return store.save(Session(tree.state(), title, "org/smollm2")).session_id


def test_without_chats_nothing_is_made(chats: Command) -> None:
    """Would catch: a look at nothing that leaves a file, or that ends in a traceback."""
    for words in ((), ("list",), ("list", "--deleted"), ("search", "x")):
        ended = chats("sessions", *words)
        assert (ended.status, ended.stdout) == (0, b"")
        assert ended.stderr.count("\n") == 1
    assert chats("sessions", "list", "--json").stdout == b"[]\n"
    for words in (("rename", "1", "x"), ("delete", "1"), ("restore", "1"), ("export", "1")):
        ended = chats("sessions", *words)
        assert ended.status == 1
        assert "There is no chat 1" in ended.stderr
    assert not default_path().exists()


def test_list_and_search(chats: Command) -> None:
    """Would catch: a list that a terminal obeys, one that scripts can't read, hits without their chat."""
    first = keep((QUESTION, "An answer about Paris."), ("More", "Much"))
    keep(("Hello", "Hi"), title="Greetings")
    ended = chats("sessions")
    lines = ended.stdout.decode().splitlines()
    assert [line.split("  ")[2] for line in lines] == ["Greetings", "What is ␛[2J [red]markup[/red] and more?"]
    assert lines[1].endswith("(smollm2, 4 turns)")
    listed = json.loads(chats("sessions", "list", "--json").stdout)
    assert (listed[0]["title"], listed[0]["turns"], listed[0]["model"]) == ("Greetings", 2, "org/smollm2")

    ended = chats("sessions", "search", "paris about")
    assert ended.stdout.decode().splitlines()[1] == "    An answer about Paris."
    hit = json.loads(chats("sessions", "search", "PARIS", "--json").stdout)[0]
    assert (hit["id"], hit["turn"], hit["found"]) == (first, 1, "Paris")
    assert chats("sessions", "search", '"') == chats("sessions", "search", "NEAR(x y)")


def test_rename_delete_restore(chats: Command) -> None:
    """Would catch: a chat that can't be had back, and one that is not gone when it should be."""
    number = str(keep(("Hello", "Hi")))
    assert chats("sessions", "rename", number, "Mine").status == 0
    assert b"Mine" in chats("sessions", "list").stdout
    ended = chats("sessions", "delete", number)
    assert f"tinychat sessions restore {number}" in ended.stderr
    assert chats("sessions", "list").stdout == b""
    assert b"Mine" in chats("sessions", "list", "--deleted").stdout
    assert chats("sessions", "restore", number).status == 0
    assert b"Mine" in chats("sessions", "list").stdout
    assert chats("sessions", "delete", number, "--forever").status == 0
    assert chats("sessions", "restore", number).status == 1


def test_export_and_import(chats: Command, tmp_path: Path) -> None:
    """Would catch: an export that can't be imported, or that loses something on the way."""
    number = str(keep((QUESTION, "Yes \ud83e"), title="Mine"))
    exported = chats("sessions", "export", number).stdout
    assert chats("sessions", "import", stdin=exported).stdout == b"2\n"
    file = tmp_path / "chat.json"
    file.write_bytes(b"\xef\xbb\xbf" + exported.replace(b"\n", b"\r\n"))
    assert chats("sessions", "import", str(file)).stdout == b"3\n", "a byte order mark and other line ends are fine"
    with Store() as store:
        assert store.read(1).session == store.read(2).session == store.read(3).session
    ended = chats("sessions", "export", number, "--format", "json")
    assert [message["role"] for message in json.loads(ended.stdout)] == ["system", "user", "assistant"]
    ended = chats("sessions", "export", number, "--format", "markdown")
    assert ended.stdout.decode().startswith("# Mine\n\n## System\n\nBe brief.\n\n## You\n\nWhat is")
    assert "question marks" in ended.stderr
    assert b"smollm2: Yes" in chats("sessions", "export", number, "--format", "text").stdout


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
def test_what_is_wrong_is_a_sentence(chats: Command, words: tuple[str, ...], status: int, says: str) -> None:
    """Would catch: a traceback, and a status that scripts misread."""
    ended = chats("sessions", *words)
    assert (ended.status, says in ended.stderr) == (status, True), ended.stderr


def test_a_damaged_file_is_a_sentence(chats: Command) -> None:
    """Would catch: a traceback of SQLite's."""
    default_path().parent.mkdir(parents=True)
    default_path().write_bytes(b"no database " * 1000)
    ended = chats("sessions")
    assert ended.status == 1
    assert "is damaged" in ended.stderr
    assert "Traceback" not in ended.stderr
