"""What a form of the weights loses: a figure that can be checked, and one that finds its file again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoints import IN_GGUF, VARIANTS
from driven import Driven, driven
from rulers import Built, assert_close, found, measure, reference
from tiny import Tiny

from tinychat import paths
from tinychat.engine import loss, loss_store
from tinychat.kernels import plain
from tinychat.models.linear import abilities
from tinychat.models.streamed import Streaming
from tinychat.protocol import QuantisationLoss

IDS = torch.randint(0, 320, (40,), generator=torch.Generator().manual_seed(1)).tolist()
LOSS = QuantisationLoss(0.25, 0.5, 3, 256)


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep what tests measure out of the person's own folder."""
    monkeypatch.setattr(paths, "data_dir", lambda: tmp_path / "data")


@pytest.fixture
def engine() -> Iterator[Driven]:
    with driven() as made:
        yield made


@pytest.mark.parametrize("variant", VARIANTS)
def test_streamed_weights_are_the_reference(tiny: Tiny, variant):
    """The ruler itself, held to transformers: catches rows in another order, a bias twice, a matrix not turned."""
    files = [tiny.safetensors(variant)] + ([tiny.gguf(variant, "Q4_1")] if variant in IN_GGUF else [])
    for made in files:
        with torch.inference_mode(), found(made.path) as architecture:
            model, report = architecture.walk(Streaming(), plain, lambda _: None)
            measured = measure(Built(model, report, report, torch.float32), IDS)
        assert_close(measured, reference(made.model, IDS))


def test_rows_of_a_large_matrix_come_in_parts(tiny: Tiny, monkeypatch):
    """Catches parts that overlap or are left out, which only matrices of millions of weights have."""
    monkeypatch.setattr("tinychat.models.streamed._ROWS_OF", 5 * 64)
    test_streamed_weights_are_the_reference(tiny, "llama")


def test_exact_forms_lose_nothing_and_others_more(tiny: Tiny, engine):
    """Catches a measure of the wrong model, and one that doesn't see what is lost."""
    path = tiny.gguf("llama", "F32").path
    losses = {}
    for load_id, dtype in enumerate(("fp32", "bf16", "int8", "int4")):
        engine.load(path, load_id=load_id, dtype=dtype)
        losses[dtype] = engine.engine.call(loss.measure)
    assert losses["fp32"].divergence < 1e-8
    assert losses["fp32"].worst_error < 1e-4
    if abilities().blocks:
        assert losses["fp32"].divergence < losses["int8"].divergence < losses["int4"].divergence
        assert 0.001 < losses["int8"].worst_error < 0.1 < losses["int4"].worst_error
    assert all(lost.tokens == 256 for lost in losses.values())


def test_a_reply_goes_on_after_it(tiny: Tiny, engine):
    """Catches a measurement that leaves something in the session's caches."""
    engine.load(tiny.safetensors("gpt2").path)
    before = engine.reply(turn_id=1).ids
    engine.engine.call(loss.measure)
    assert engine.reply(turn_id=2).ids == before


def test_what_was_measured_is_shown_for_that_file_and_form_alone(tiny: Tiny, engine, tmp_path):
    """Catches a figure given to another file of the same shape, or to another form of the same file."""
    path, other = tmp_path / "a.gguf", tmp_path / "b.gguf"
    shutil.copy(tiny.gguf("llama", "F32").path, path)
    shutil.copy(tiny.gguf("llama", "F32", seed=7).path, other)
    info = engine.load(path, load_id=1, dtype="bf16").info
    assert info.loss is None
    loss_store.remember([path], info.dtype_reason, LOSS)
    assert engine.load(path, load_id=2, dtype="bf16").info.loss == LOSS
    assert engine.load(path, load_id=3, dtype="fp32").info.loss is None
    assert engine.load(other, load_id=4, dtype="bf16").info.loss is None


def test_the_store(tmp_path):
    """Values of several files and forms; a copy elsewhere is the same file, a changed byte in a sample another one."""
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(bytes(100_000))
    b.write_bytes(bytes(100_001))
    second = replace(LOSS, divergence=1.0)
    for file, form, value in ((a, "int8", LOSS), (a, "int4", second), (b, "int8", second)):
        loss_store.remember([file], form, value)
    assert loss_store.recall([a]) == {"int8": LOSS, "int4": second}
    assert loss_store.recall([b]) == {"int8": second}
    copy = tmp_path / "elsewhere"
    shutil.copy(a, copy)
    assert loss_store.recall([copy]) == loss_store.recall([a])
    with a.open("r+b") as file:
        file.seek(99_999)
        file.write(b"x")
    assert loss_store.recall([a]) == {}
    assert loss_store.recall([tmp_path / "gone"]) == {}
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["losses.json"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": 3}', "\x00"])
def test_a_store_that_is_broken_holds_nothing(tmp_path, text):
    """Catches a traceback instead of "not measured", and a store that can never be written again."""
    file = tmp_path / "a"
    file.write_bytes(b"weights")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "losses.json").write_text(text.replace("x", loss_store.fingerprint([file])))
    assert loss_store.recall([file]) == {}
    loss_store.remember([file], "int8", LOSS) if "x" not in text else None
    assert loss_store.recall([file]) == ({"int8": LOSS} if "x" not in text else {})


def test_an_empty_file_has_a_fingerprint(tmp_path):
    """Catches a division by a size of 0."""
    (tmp_path / "empty").touch()
    assert len(loss_store.fingerprint([tmp_path / "empty"])) == 64
