"""Chats on disk: the same state comes back, whatever was in it and whoever else was writing."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinychat.chats import Tree, TreeState, schema
from tinychat.chats.export import markdown, messages, plain_text, read_whole, whole
from tinychat.chats.recorder import Recorder
from tinychat.chats.session import Session
from tinychat.chats.store import Store
from tinychat.errors import TinychatError
from tinychat.protocol import MAX_SEED, SamplerSettings, TurnFinished

ROOT = Path(__file__).resolve().parents[2]
NASTY = "[/INST] \x1b[2J\x00 'quoted' \"double\" \U0001f999 \ud83e lone e\u0301 日本語"


def finished(turn_id: int, text: str, ids: tuple[int, ...] = (1, 2**32 - 1), seed: int = MAX_SEED) -> TurnFinished:
    return TurnFinished(turn_id, "cancelled", ids, text, "hm", 10, 0, len(ids), 0.1, 0.2, 0.1, seed, "torch", forced=1)


def exchange(tree: Tree, question: str, answer: str) -> int:
    tree.ask(question)
    reply = tree.answer().turn_id
    tree.drawn_by(reply, 0, SamplerSettings(logit_bias=((3, float("-inf")), (4, 1.5)), seed=7))
    tree.finish(finished(reply, answer), "vocabulary", "smollm2", "fingerprint")
    return reply


def busy_tree() -> Tree:
    """A conversation with a bit of everything."""
    tree = Tree(NASTY)
    first = exchange(tree, f"What is {NASTY}?", f"It is {NASTY}.")
    exchange(tree, "More", "Much")
    tree.edit(first, "Something else")
    tree.undo()
    exchange(tree, "Another", "Yes")
    tree.remove(tree.head or 0)
    tree.undo()
    return tree


def session_of(tree: Tree, title: str = "") -> Session:
    return Session(tree.state(), title, "org/model", "fingerprint", SamplerSettings(temperature=0.1, seed=3))


def normal(session: Session) -> Session:
    return replace(session, tree=session.tree.renumbered(count()))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "data" / "chats.db") as made:
        yield made


def test_a_session_comes_back_as_it_was(store: Store) -> None:
    """Would catch: any field that is lost, rounded or mangled on its way to disk and back."""
    session = session_of(busy_tree(), NASTY)
    saved = store.save(session)
    assert store.read(saved.session_id).session == normal(session)


def test_only_what_changed_is_written(store: Store) -> None:
    """Would catch: a long chat that is written whole four times a second."""
    tree = busy_tree()
    last = store.save(session_of(tree))
    written: list[str] = []
    store._connection.set_trace_callback(written.append)
    tree.ask("New")
    reply = tree.answer().turn_id
    last = store.save(session_of(tree), last)
    tree.finish(finished(reply, "grown"), "v")
    last = store.save(session_of(tree), last)
    distinct = set(written)  # a statement is told again for each trigger
    assert sum("INSERT INTO turn (" in statement for statement in distinct) == 2
    assert sum("UPDATE turn " in statement for statement in distinct) == 1
    store._connection.set_trace_callback(None)
    assert store.read(last.session_id).session == normal(session_of(tree))


def test_what_was_undone_is_forgotten_where_something_new_is_done(store: Store) -> None:
    """Would catch: a redo that comes back with the file, after it was gone from the screen."""
    tree = busy_tree()
    last = store.save(session_of(tree))
    for _ in range(3):
        tree.undo()
    last = store.save(session_of(tree), last)
    assert Tree.restored(store.read(last.session_id).session.tree).can_redo
    exchange(tree, "New", "words")
    last = store.save(session_of(tree), last)
    assert store.read(last.session_id).session == normal(session_of(tree))


TEXT = st.text(st.characters(), max_size=12)  # lone surrogates, NUL and all
STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "again", "edit", "undo", "redo", "remove", "choose"]), st.integers(0, 99), TEXT)
)


def played(steps: list[tuple[str, int, str]], text: str) -> Iterator[Tree]:
    """Do these things to a conversation; yield it after each."""
    tree = Tree(text)
    for what, number, said in steps:
        turns = list(tree._present())
        turn = turns[number % len(turns)] if turns else None
        if what == "ask":
            exchange(tree, said, said[::-1])
        elif what in ("undo", "redo"):
            getattr(tree, what)()
        elif turn is not None:
            if what == "again" and turn.role == "assistant":
                tree.finish(finished(tree.regenerate(turn.turn_id).turn_id, said, ids=(), seed=number), "v")
            elif what == "edit" and (said or turn.role == "user"):
                tree.edit(turn.turn_id, said)
            elif what in ("remove", "choose"):
                getattr(tree, what)(turn.turn_id)
        yield tree


@given(steps=STEPS, title=TEXT)
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_anything_that_can_be_done_comes_back(tmp_path: Path, steps: list[tuple[str, int, str]], title: str) -> None:
    """Would catch: an order of actions after which the file holds another conversation than the screen."""
    with Store(tmp_path / "chats.db") as store:
        last = None
        for tree in played(steps, title):
            last = store.save(session_of(tree, title), last)
            assert not last.parted
        if last is not None:
            assert store.read(last.session_id).session == normal(session_of(tree, title))
            again = store.read(last.session_id).session
            assert read_whole(whole(again), "x") == again, "and goes through a file as it is"
            assert read_whole(whole(session_of(tree, title)), "x") == again
            assert store._connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_lists_titles_renames_deletes(store: Store) -> None:
    """Would catch: a chat that can't be told from others, or not be found again; one deleted without a way back."""
    first, second = (store.save(session_of(tree)) for tree in (busy_tree(), Tree()))
    tree = Tree()
    exchange(tree, "  A question\nof two lines that is rather long, longer than a title may be  ", "Yes")
    third = store.save(session_of(tree))
    names = {each.session_id: each.name for each in store.summaries()}
    assert names[third.session_id] == "A question of two lines that is rather long, longer than a…"
    assert list(names) == [third.session_id, second.session_id, first.session_id]
    store.rename(third.session_id, f"Mine {NASTY}")
    assert store.summaries()[0].name == f"Mine {NASTY}"
    assert store.read(third.session_id).session.title == f"Mine {NASTY}"
    store.rename(third.session_id, "")
    assert store.summaries()[0].name.startswith("A question")

    store.delete(third.session_id)
    assert third.session_id not in [each.session_id for each in store.summaries()]
    assert [each.session_id for each in store.summaries(deleted=True)] == [third.session_id]
    assert not store.search("rather long")
    for wrong in (store.read, store.delete, lambda number: store.rename(number, "x")):
        with pytest.raises(TinychatError, match=f"no chat {third.session_id}"):
            wrong(third.session_id)
    store.restore(third.session_id)
    assert store.latest() == third.session_id
    with pytest.raises(TinychatError, match="No deleted chat"):
        store.restore(third.session_id)


def test_what_is_erased_is_gone(store: Store) -> None:
    """Would catch: words that a person wanted gone, still to be found in the file."""
    tree = Tree()
    exchange(tree, "my secret qxzvk passphrase", "noted")
    saved = store.save(session_of(tree))
    store.erase(saved.session_id)
    with pytest.raises(TinychatError):
        store.erase(saved.session_id)
    assert store._connection.execute("SELECT count(*) FROM turn").fetchone() == (0,)
    assert not store.search("passphrase")
    parts = b"".join(block for (block,) in store._connection.execute("SELECT block FROM turn_text_data"))
    assert not any(rare in parts for rare in (b"qxz", b"xzv", b"zvk")), "the index holds sequences of three characters"
    for file in store.path.parent.iterdir():
        assert b"passphrase" not in file.read_bytes(), file


def test_a_rename_elsewhere_survives_what_is_said_here(store: Store) -> None:
    """Would catch: the title of a running chat set back by its next word."""
    tree = busy_tree()
    last = store.save(session_of(tree))
    store.rename(last.session_id, "Renamed")
    exchange(tree, "More", "words")
    assert not store.save(session_of(tree), last).parted
    assert store.read(last.session_id).session.title == "Renamed"


# ---------------------------------------------------------------------------------------------------------------------
# Search


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store(tmp_path_factory.mktemp("library") / "chats.db") as made:
        tree = Tree()
        exchange(tree, "What is the capital of France?", "The capital of France is Paris, on the Seine.")
        exchange(tree, 'Say "hello" to 100% of C++_users', "Hello 🦙 and 日本語の文章です")
        made.save(session_of(tree))
        yield made


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("paris", ["Paris"]),
        ("capital france", ["capital", "capital"]),
        ("pari sein", ["Pari"]),
        ('"hello"', ['"hello"']),
        ("hello -paris", []),
        ("100%", ["100%"]),
        ("%", ["%"]),
        ("_", ["_"]),
        ("C++_", ["C++_"]),
        ("🦙", ["🦙"]),
        ("日本語", ["日本語"]),
        ("文章", ["文章"]),
        ("nowhere", []),
        ("", []),
        ("   ", []),
    ],
)
def test_what_is_found(library: Store, query: str, found: list[str]) -> None:
    """Would catch: parts of words, other languages, other letter cases and signs that aren't found."""
    assert [hit.found for hit in library.search(query)] == found


def test_a_snippet_shows_where_it_stands(library: Store) -> None:
    """Would catch: a hit without its surroundings, or one on several lines."""
    hit = library.search("Paris")[0]
    assert (hit.name, hit.role, hit.number) == ("What is the capital of France?", "assistant", 1)
    assert hit.before.endswith("The capital of France is ")
    assert hit.after == ", on the Seine."


@given(query=st.text(st.characters()) | st.text(st.sampled_from('"*^():+-{}~AND OR NOT NEAR\\%_\0🦙'), max_size=30))
@settings(deadline=None, max_examples=150)
def test_no_query_raises(library: Store, query: str) -> None:
    """Would catch: a quote, an operator or an emoji that SQLite takes for syntax."""
    for hit in library.search(query):
        assert hit.before or hit.found or hit.after


# ---------------------------------------------------------------------------------------------------------------------
# Several writers, and an end at any moment

WRITER = """
import sys, time
from pathlib import Path
from tinychat.chats import Tree
from tinychat.chats.recorder import Recorder
from tinychat.chats.session import Session
recorder = Recorder(Path(sys.argv[1]))
tree = Tree()
for number in range(10_000):
    tree.ask(f"question {number} of {sys.argv[2]}")
    reply = tree.answer()
    said = ""
    for word in range(20):
        said += f" word{word}"
        tree._put(reply.turn_id, text=said)
        recorder.keep(1, Session(tree.state()))
        print(number, word, time.monotonic(), flush=True)
        time.sleep(0.01)
    tree.fail(reply.turn_id, said, reason="eos")
"""


def writer(path: Path, name: str) -> subprocess.Popen[str]:
    """A process that writes a chat, word by word, and prints each word it has handed over."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name], stdout=subprocess.PIPE, text=True, env=environment
    )


def test_killed_at_any_moment_it_loses_half_a_second_at_most(tmp_path: Path) -> None:
    """Would catch: a file that is broken by a kill, or words that only reach it at the end of a reply."""
    path = tmp_path / "chats.db"
    for seed in range(10):
        process = writer(path, f"run {seed}")
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        for _ in range(random.Random(seed).randrange(1, 60)):
            lines.append(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.read().splitlines()
        process.wait()
        process.stdout.close()
        handed = [line.split() for line in lines if len(line.split()) == 3]
        killed = float(handed[-1][2])
        with Store(path) as store:
            saved = store.read(store.latest() or 0)
            assert store._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            turns = saved.session.tree.turns
            assert turns[0].text == f"question 0 of run {seed}"
            words = sum(len(turn.text.split()) for turn in turns if turn.role == "assistant")
            sure = [int(number) * 20 + int(word) + 1 for number, word, at in handed if float(at) < killed - 0.5]
            assert words >= max(sure, default=0)
            again = Tree.restored(saved.session.tree)
            assert [turn.role for turn in again.path()] == ["user", "assistant"] * (len(again) // 2)
    with Store(path) as store:
        assert len(store.summaries()) == 10
        found = {hit.session_id for hit in store.search("question of run", 10_000)}
        assert len(found) == 10, "the index has all that the file has"


def test_two_processes_write_at_the_same_time(tmp_path: Path) -> None:
    """Would catch: "database is locked", and words of one chat in the other."""
    path = tmp_path / "chats.db"
    processes = [writer(path, name) for name in ("one", "two")]
    try:
        for process in processes:
            assert process.stdout is not None
            assert any(line.startswith("2 ") for line in process.stdout), "it goes on beside the other"
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    with Store(path) as store:
        assert {each.name for each in store.summaries()} == {"question 0 of one", "question 0 of two"}
        for each in store.summaries():
            questions = [t.text for t in store.read(each.session_id).session.tree.turns if t.role == "user"]
            assert questions == [f"question {n} of {each.name.split()[-1]}" for n in range(len(questions))]
            assert len(questions) >= 2


def test_two_windows_on_one_chat_keep_both(tmp_path: Path, store: Store) -> None:
    """Would catch: the words of the window that was slower, written over or mixed with the other's."""
    tree = Tree()
    exchange(tree, "Together", "Yes")
    ours = store.save(session_of(tree))
    with Store(store.path) as other:
        theirs = other.read(ours.session_id)
        elsewhere = Tree.restored(theirs.session.tree, count(50))
        theirs = replace(theirs, session=session_of(elsewhere))
        exchange(elsewhere, "There", "said there")
        theirs = other.save(session_of(elsewhere), theirs)
        assert theirs.session_id == ours.session_id
        exchange(tree, "Here", "said here")
        mine = store.save(session_of(tree), ours)
        assert mine.parted
        exchange(elsewhere, "There again", "still there")
        assert not other.save(session_of(elsewhere), theirs).parted
    assert [t.text for t in store.read(ours.session_id).session.tree.turns][2::2] == ["There", "There again"]
    assert [t.text for t in store.read(mine.session_id).session.tree.turns][2::2] == ["Here"]


# ---------------------------------------------------------------------------------------------------------------------
# The writer, and what goes wrong


def test_the_writer_keeps_the_newest_and_says_its_number(tmp_path: Path) -> None:
    """Would catch: a writer that writes every state there was, or that writes nothing at the end."""
    recorder = Recorder(tmp_path / "chats.db")
    assert recorder.session_id(1) is None
    tree = Tree()
    for number in range(200):
        exchange(tree, f"question {number}", "yes")
        recorder.keep(1, session_of(tree))
    recorder.keep(2, session_of(busy_tree()))
    assert recorder.close(20.0)
    assert recorder.news() == []
    number = recorder.session_id(1)
    assert number is not None
    with Store(tmp_path / "chats.db") as store:
        assert len(store.read(number).session.tree.turns) == 400
        assert len(store.summaries()) == 2


def until(holds: object, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_file_that_can_not_be_written_is_a_sentence_and_then_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch: a chat that ends with the disk, the same sentence over and over, and words lost that were said
    meanwhile."""
    monkeypatch.setattr("tinychat.chats.recorder.RETRY_SECONDS", 0.02)
    blocked = tmp_path / "data"
    blocked.write_text("a file where a folder has to be")
    recorder = Recorder(blocked / "chats.db")
    tree = Tree()
    exchange(tree, "one", "1")
    recorder.keep(1, session_of(tree))
    until(lambda: recorder.problem)
    exchange(tree, "two", "2")
    recorder.keep(1, session_of(tree))
    assert not recorder.flush(0.1)
    news = recorder.news()
    assert len(news) == 1
    assert "is not being saved" in news[0]
    assert str(blocked) in news[0]
    blocked.unlink()
    until(lambda: recorder.flush(0.05))
    assert recorder.news() == ["The chat is being saved again."]
    assert recorder.close(20.0)
    with Store(blocked / "chats.db") as store:
        assert len(store.read(1).session.tree.turns) == 4


def test_a_disk_that_is_full_is_said(store: Store) -> None:
    """Would catch: an error nobody understands, and a transaction left open that blocks the next."""
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    tree = Tree()
    exchange(tree, "long " * 50_000, "yes")
    with pytest.raises(TinychatError, match="disk is full"):
        store.save(session_of(tree))
    store._connection.execute("PRAGMA max_page_count = 1000000")
    store.save(session_of(tree))


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    """Would catch: a traceback, or a new file written over the damaged one."""
    path = tmp_path / "chats.db"
    path.write_bytes(b"This is no database at all. " * 500)
    with pytest.raises(TinychatError, match="is damaged") as caught:
        Store(path)
    assert str(path) in caught.value.summary
    assert "Move it away" in caught.value.remedy
    assert path.read_bytes().startswith(b"This is no database")


def test_a_file_that_may_only_be_read_is_said(store: Store) -> None:
    """Would catch: a traceback where a chat is opened from a backup."""
    store._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(TinychatError, match="can't be written"):
        store.save(session_of(busy_tree()))


def test_a_newer_file_is_refused_and_left_alone(store: Store) -> None:
    """Would catch: an old program that writes its own tables into a newer file."""
    store._connection.execute(f"PRAGMA user_version = {len(schema.MIGRATIONS) + 1}")
    with pytest.raises(TinychatError, match="newer tinychat"):
        Store(store.path)


def test_an_older_file_becomes_a_newer_one_with_its_chats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    """Would catch: a migration that loses what was there, or that leaves half of itself behind when it fails."""
    saved = store.save(session_of(busy_tree()))
    better = "ALTER TABLE session ADD COLUMN colour TEXT;\nCREATE TABLE extra (x);\n"
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, f"{better}SELECT nonsense;\n"))
    with pytest.raises(TinychatError, match="nonsense"):
        Store(store.path)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS[:-1], better))
    with Store(store.path) as newer:
        assert newer._connection.execute("SELECT colour FROM session").fetchall() == [(None,)]
        assert newer.read(saved.session_id).session == normal(session_of(busy_tree()))


# ---------------------------------------------------------------------------------------------------------------------
# Export and import


def test_exports_say_what_was_said(store: Store) -> None:
    """Would catch: thinking read as the answer, a fence that swallows the rest, roles mixed up."""
    tree = Tree("Be brief.")
    exchange(tree, "Code?", " ```python\nprint(1)")
    tree.ask("never answered")
    tree.answer()
    session = session_of(tree, "A title")
    assert messages(session) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Code?"},
        {"role": "assistant", "content": " ```python\nprint(1)"},
        {"role": "user", "content": "never answered"},
    ]
    assert markdown(session) == (
        "# A title\n\n## System\n\nBe brief.\n\n## You\n\nCode?\n\n## smollm2\n\n> hm\n\n"
        " ```python\nprint(1)\n```\n\n## You\n\nnever answered\n"
    )
    assert plain_text(session).splitlines()[2] == "You: Code?"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "other"}, "no chat that tinychat exported"),
        ({"version": 2}, "version 2"),
        ({"head": 99}, "names turns"),
        ({"done": 99}, "names turns"),
        ({"system": 3}, "a text is none"),
        ({"sampler": {"temperature": 99}}, "temperature"),
        ({"turns": [{"role": "assistant"}]}, "turn_id"),
        ({"turns": [{"turn_id": 0, "parent": None, "role": "assistant"}]}, "can't follow"),
        ({"turns": [{"turn_id": 0, "parent": 0, "role": "user"}]}, "can't follow"),
        ({"turns": [{"turn_id": 0, "parent": None, "role": "user", "ids": [-1]}]}, "out of its range"),
        ({"turns": [{"turn_id": 0, "parent": None, "role": "user", "text": 5}]}, "text is no text"),
        ({"turns": 7}, "holds what can't be"),
    ],
)
def test_a_file_that_is_no_session_is_refused_in_a_sentence(change: dict[str, object], says: str) -> None:
    """Would catch: a damaged file that becomes a chat nobody can open."""
    plain = json.loads(whole(Session(TreeState()))) | change
    with pytest.raises(TinychatError, match=says):
        read_whole(json.dumps(plain), "file.json")
    with pytest.raises(TinychatError, match="no JSON"):
        read_whole("{", "file.json")


def test_sqlite_has_what_is_needed() -> None:
    """Would catch: a Python whose SQLite is too old for the index, before a person meets it."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE t USING fts5(x, tokenize='trigram')")
    connection.close()
