"""`run --trace`: the file beside the reply, and what is said where there can be none."""

from __future__ import annotations

import json
from pathlib import Path

from ended_command import Command


def test_a_line_a_token(tinychat: Command, gpt2_folder: Path, tmp_path: Path) -> None:
    """Would catch: a trace that lacks the last tokens, that changes the reply, or that needs --json for its figures."""
    said = ("run", str(gpt2_folder), "Hello there", "-n", "8", "--seed", "5")
    file = tmp_path / "trace.jsonl"
    file.write_text("what was there before\n")
    plain = tinychat(*said)
    traced = tinychat(*said, "--trace", str(file))
    assert (traced.status, traced.stdout) == (0, plain.stdout)
    tokens = [token for token in tinychat(*said, "--json").lines if token["type"] == "token"]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["id"] for line in lines] == [token["id"] for token in tokens]
    for index, (line, token) in enumerate(zip(lines, tokens, strict=True)):
        assert (line["turn"], line["index"]) == (1, index)
        assert all(line[key] == token[key] for key in ("logprob", "rank", "entropy"))
        assert line["layers"]


def test_a_place_that_can_t_be_written(tinychat: Command, gpt2_folder: Path, tmp_path: Path) -> None:
    """Would catch: a traceback, or a model that is loaded first."""
    ended = tinychat("run", str(gpt2_folder), "Hello", "--trace", str(tmp_path / "none" / "trace.jsonl"))
    assert ended.status == 1
    assert ended.stdout == b""
    assert "can't be written: No such file or directory. Choose another file for --trace." in ended.stderr
