"""`tinychat prompt`: the exact text and ids, from any template, and a sentence for every wrong conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ended_command import Command

CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi\r\n there"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "And you?"},
]


def asked(conversation: Any) -> bytes:
    return json.dumps(conversation).encode()


def test_a_base_model_gets_the_transcript(tinychat: Command, vocabulary_folder: str) -> None:
    """Would catch: a transcript that differs from the one chats are made with; contents that are changed."""
    ended = tinychat("prompt", vocabulary_folder, "--messages", "-", stdin=asked(CONVERSATION))
    assert ended.stdout == b"Be brief.\n\nUser: Hi\r\n there\nAssistant: Hello.\nUser: And you?\nAssistant:"
    without = tinychat(
        "prompt", vocabulary_folder, "--messages", "-", "--no-generation-prompt", stdin=asked(CONVERSATION)
    )
    assert without.stdout + b"Assistant:" == ended.stdout


def test_ids_are_those_of_the_text(tinychat: Command, vocabulary_folder: str) -> None:
    """Would catch: ids of another text than the one that is shown. GPT-2's template has no control tokens."""
    ids = tinychat("prompt", vocabulary_folder, "--messages", "-", "--ids", stdin=asked(CONVERSATION))
    text = tinychat("prompt", vocabulary_folder, "--messages", "-", stdin=asked(CONVERSATION))
    assert tinychat("tokenize", vocabulary_folder, "--decode", stdin=ids.stdout).stdout == text.stdout
    assert tinychat("tokenize", vocabulary_folder, "--ids", stdin=text.stdout).json == ids.json


def test_another_template(tinychat: Command, vocabulary_folder: str, tmp_path: Path) -> None:
    """Would catch: --template ignored; a file with a byte order mark that puts it into the prompt."""
    template = tmp_path / "mine.jinja"
    template.write_text("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", encoding="utf-8-sig")
    file = tmp_path / "messages.json"
    file.write_text(json.dumps(CONVERSATION[:2]), encoding="utf-8-sig")
    ended = tinychat("prompt", vocabulary_folder, "--messages", str(file), "--template", str(template))
    assert ended.text == "[system]Be brief.[user]Hi\r\n there"


@pytest.mark.parametrize(
    ("stdin", "says"),
    [
        (b"nonsense", "stdin is not JSON: Expecting value"),
        (b"\xff", "stdin is not UTF-8: byte 0 is 0xFF."),
        (b"{}", "stdin has to hold a JSON list"),
        (asked(["hi"]), "Message 1 of stdin holds 'hi', but has to hold role and content."),
        (asked([{"role": "user"}]), "Message 1 of stdin holds the keys 'role', but has to hold role and content."),
        (asked([{"role": "user", "content": "x", "name": "y"}]), "holds the keys 'role', 'content', 'name'"),
        (asked([{"role": "tool", "content": "x"}]), "The role of message 1 of stdin is 'tool', but has to be one of"),
        (asked([*CONVERSATION, {"role": "user", "content": 5}]), "The content of message 5 of stdin is 5"),
    ],
)
def test_what_is_no_conversation(tinychat: Command, vocabulary_folder: str, stdin: bytes, says: str) -> None:
    """Would catch: a key that is passed over in silence, or a KeyError for a person to read."""
    ended = tinychat("prompt", vocabulary_folder, "--messages", "-", stdin=stdin)
    assert ended.status == 1
    assert says in ended.stderr
    assert ended.stdout == b""


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('no system') }}", 'refuses the conversation: "no system", in line 1'),
        ("\n{% for %}", "can't be compiled"),
        ("\n\n{{ 1 / 0 }}", "fails: division by zero, in line 3: {{ 1 / 0 }}"),
    ],
)
def test_a_template_that_fails_is_shown(
    tinychat: Command, vocabulary_folder: str, tmp_path: Path, template: str, says: str
) -> None:
    """Would catch: a Jinja traceback; an error without the line it is in."""
    file = tmp_path / "mine.jinja"
    file.write_text(template)
    ended = tinychat("prompt", vocabulary_folder, "--messages", "-", "--template", str(file), stdin=asked(CONVERSATION))
    assert ended.status == 1
    assert says in ended.stderr
    assert str(file) in ended.stderr


def test_files_that_are_not_there(tinychat: Command, vocabulary_folder: str, tmp_path: Path) -> None:
    """Would catch: a FileNotFoundError for a person to read."""
    ended = tinychat("prompt", vocabulary_folder, "--messages", str(tmp_path / "none.json"))
    assert ended.status == 1
    assert "none.json can't be read: No such file or directory." in ended.stderr
