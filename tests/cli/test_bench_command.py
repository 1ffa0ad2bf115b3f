"""`tinychat bench`: the promised keys, figures that can be checked, and what doesn't fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ended_command import Command
from tiny import Tiny

from tinychat.engine import bench
from tinychat.engine.loading import Session
from tinychat.models.linear import abilities
from tinychat.models.paged_cache import blocks

needs_copies = pytest.mark.skipif(
    not (abilities().blocks and abilities().bf16), reason="there is nothing to copy, or no copy"
)
KEYS = [
    *("model", "arch", "dtype", "head_dtype", "threads", "kernel", "load_s", "ttft_s", "prefill_tok_s"),
    *("decode_tok_s", "weights_bytes", "rss_bytes", "read_gb_s", "decode_limit_tok_s", "decode_of_limit"),
    "cache_blocks",
]
SMALL = ("--prompt-tokens", "40", "--new-tokens", "20", "--runs", "2")


@pytest.fixture(autouse=True)
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is timed with a small buffer: these tests are about the sums, not about the machine."""
    monkeypatch.setattr("tinychat.engine.bench._LARGE", 2**22)


def test_json_is_as_promised(tinychat: Command, gpt2_folder: Path) -> None:
    """Would catch: a key that is missing, renamed or new; figures that contradict each other."""
    ended = tinychat("bench", str(gpt2_folder), *SMALL, "--json", "--threads", "1", "--dtype", "fp32")
    assert ended.status == 0
    found = ended.json
    assert list(found) == KEYS
    assert (found["arch"], found["dtype"], found["threads"]) == ("GPT-2", "fp32", 1)
    assert all(value > 0 for value in found.values() if isinstance(value, int | float))
    assert found["prefill_tok_s"] >= 40 / found["ttft_s"]
    assert found["decode_of_limit"] == pytest.approx(found["decode_tok_s"] / found["decode_limit_tok_s"])
    width, layers = 32, 2
    embeddings = 4 * (128 + (0 if abilities().fp32_tiles else 50257)) * width
    cache = 4 * 2 * layers * width * (40 + 20 / 2)
    per_token = found["weights_bytes"] - embeddings + cache
    assert found["decode_limit_tok_s"] == pytest.approx(found["read_gb_s"] * 1e9 / per_token)
    assert found["rss_bytes"] > found["weights_bytes"]
    # 59 tokens are in the cache in the end, in blocks of 32; the context is 128 tokens.
    assert found["cache_blocks"] == {"used": 2, "shared": 0, "free": blocks(None, 128) - 2, "failures": 0}


def test_blocks_that_were_lacking_are_counted(
    tinychat: Command, gpt2_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch: failures left out, or those before what is measured counted in."""
    real = bench._run

    def short_of_blocks(session: Session, *arguments: Any) -> tuple[float, float, float]:
        session.context.sequence.pools[0].failures += 3
        return real(session, *arguments)

    monkeypatch.setattr(bench, "_run", short_of_blocks)
    ended = tinychat("bench", str(gpt2_folder), *SMALL)
    assert ended.status == 0
    assert f"cache blocks  2 used, 0 shared, {blocks(None, 128) - 2} free, 6 allocation failures" in ended.text


@pytest.mark.parametrize("detail", ["none", "basic", "full"])
def test_every_detail_can_be_timed(tinychat: Command, gpt2_folder: Path, detail: str) -> None:
    """Would catch: a detail that is refused; a report that doesn't say which one it is of."""
    ended = tinychat("bench", str(gpt2_folder), *SMALL, "--detail", detail)
    assert ended.status == 0
    assert f"detail {detail}, 2 cold runs" in ended.text


def test_more_than_the_context_holds(tinychat: Command, gpt2_folder: Path) -> None:
    """Would catch: a run that is cut short in silence, and called a measurement."""
    ended = tinychat("bench", str(gpt2_folder))
    assert (ended.status, ended.stdout) == (2, b"")
    assert "512 prompt tokens and 128 new ones are more than the context of repo holds, 128." in ended.stderr


@needs_copies
def test_a_copy_for_prompts_is_named(tinychat: Command, tiny: Tiny, tmp_path: Path, monkeypatch) -> None:
    """Would catch: speeds with a copy that look like speeds without one; a loss that is said to be the copy's."""
    monkeypatch.setattr("tinychat.paths.data_dir", lambda: tmp_path)
    path = str(tiny.gguf("llama", "Q4_1").path)
    with_copy = ("bench", path, *SMALL, "--prefill-copy", "always")
    ended = tinychat(*with_copy, "--loss")
    assert ended.status == 0, ended.stderr
    assert "copy          Long prompts are multiplied by a bf16 copy of the weights, " in ended.text
    assert "its copy for long prompts is not measured" in ended.text
    found, without = tinychat(*with_copy, "--json").json, tinychat("bench", path, *SMALL, "--json").json
    if "copy" not in without["kernel"]:
        assert found["kernel"] == f"{without['kernel']}+copy"
        assert found["weights_bytes"] > without["weights_bytes"]


def test_a_loss_is_measured_and_shown_again(
    tinychat: Command, gpt2_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Would catch: a measurement that is not kept, or that `show` doesn't find."""
    monkeypatch.setattr("tinychat.paths.data_dir", lambda: tmp_path)
    assert "loss        not measured" in tinychat("show", str(gpt2_folder)).text
    ended = tinychat("bench", str(gpt2_folder), *SMALL, "--dtype", "int8", "--loss", "--json")
    assert list(ended.json) == [*KEYS, "kl_nats", "worst_error", "worst_layer"]
    assert 0 < ended.json["kl_nats"] < 0.1
    assert 0 < ended.json["worst_error"] < 0.1
    [(form, shown)] = tinychat("show", str(gpt2_folder), "--json").json["loss"].items()
    assert form.startswith("int8 (file F32, quantised), head ")
    assert shown["divergence"] == ended.json["kl_nats"]
    assert f"loss        {form}: KL " in tinychat("show", str(gpt2_folder)).text
