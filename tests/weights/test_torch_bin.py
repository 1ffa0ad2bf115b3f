"""PyTorch's own files: the same numbers as from safetensors, and no code run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import Tiny

from tinychat.errors import CheckpointError, TinychatError, UnsupportedModel
from tinychat.weights import open_checkpoint, torch_bin


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder without weights."""
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    return tmp_path


def write(folder: Path, content: Any, **options: Any) -> Path:
    """Write the folder's weights; return the folder."""
    torch.save(content, folder / "pytorch_model.bin", **options)
    return folder


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    """Read all tensors, fp32."""
    with open_checkpoint(folder) as checkpoint:
        return {name: tensor.dense(torch.float32) for name, tensor in checkpoint.tensors.items()}


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("shards", [False, True])
def test_the_same_numbers_as_from_safetensors(tiny: Tiny, dtype, shards):
    """Catches a tensor of one file read from another, and a dtype misread."""
    expected = tiny.safetensors("gpt2", dtype).path
    with open_checkpoint(expected) as theirs, open_checkpoint(tiny.pickled("gpt2", dtype, shards=shards).path) as ours:
        assert (ours.format, ours.config) == ("pickle", theirs.config)
        assert ours.tensors.keys() == theirs.tensors.keys()
        for name, mine in ours.tensors.items():
            other = theirs.tensors[name]
            assert (mine.name, mine.shape, mine.type, mine.nbytes) == (name, other.shape, dtype, other.nbytes)
            assert mine.file.suffix == ".bin"
            assert mine.blocks() is None
            for wanted in (torch.float32, torch.bfloat16):
                dense = mine.dense(wanted)
                assert dense.is_contiguous()
                assert torch.equal(dense, other.dense(wanted))
            assert torch.equal(mine.dense(torch.float32, slice(1, 3)), other.dense(torch.float32, slice(1, 3)))


def test_shared_turned_and_sliced_tensors(folder: Path):
    """A tied head shares its storage, some files hold views: catches a read by storage instead of by tensor."""
    table = torch.arange(12.0).view(3, 4)
    content = {
        "wte": table, "head": table, "turned": table.T, "part": table[1:], "one": torch.tensor(7.0),
        "none": torch.empty(0, 4), "wished": torch.nn.Parameter(table[0]),
    }  # fmt: skip
    read = tensors_of(write(folder, OrderedDict(content)))
    assert list(read) == list(content)
    for name, values in content.items():
        assert torch.equal(read[name], values), name
        assert read[name].is_contiguous()


def test_what_was_read_does_not_stay_mapped(folder: Path, monkeypatch):
    """Pages of a mapping count as the process's memory: catches a load that ends up with the file in memory twice."""
    monkeypatch.setattr(torch_bin, "MAPPED", 2**22)
    rows = torch.arange(2**24, dtype=torch.float32).view(-1, 64)  # 64 MiB
    write(folder, {"a": rows, "b": rows + 1})
    process = psutil.Process()
    with open_checkpoint(folder) as checkpoint:
        tensor = checkpoint.tensors["b"]
        assert tensor.dense(torch.float32, slice(0, 1)).shape == (1, 64)
        before = process.memory_info().rss
        for start in range(0, len(rows), 2**14):
            part = slice(start, start + 2**14)
            assert torch.equal(tensor.dense(torch.float32, part), rows[part] + 1)
        assert process.memory_info().rss - before < 2**25
        made = tensor.dense(torch.float32)
    assert torch.equal(made, rows + 1), "it outlives the mapping and the checkpoint"


class Shell:
    """What a malicious file holds."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Say what to call when it is unpickled."""
        return os.system, ("touch ran",)


@pytest.mark.parametrize("where", ["value", "name", "beside"])
def test_a_pickle_that_would_run_code_is_refused(folder: Path, monkeypatch, where):
    """The file is opened by nothing that runs it; the sentence says what it wanted to call."""
    monkeypatch.chdir(folder)
    content = {"value": {"a": Shell()}, "name": {Shell(): torch.ones(1)}, "beside": [torch.ones(1), Shell()]}[where]
    sentence = r"holds more than weights: opening it would call '\w+\.system'"
    with open_checkpoint(write(folder, content)) as checkpoint, pytest.raises(CheckpointError, match=sentence):
        _ = checkpoint.tensors
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    "content",
    [torch.ones(2), {}, [torch.ones(2)], {"a": 1}, {1: torch.ones(2)}, {"model": {"a": torch.ones(2)}},
     {"a": torch.ones(2).to_sparse()}],
)  # fmt: skip
def test_what_is_not_tensors_by_name_is_refused(folder: Path, content):
    """Catches a checkpoint of a training run taken for weights, and an AttributeError."""
    with open_checkpoint(write(folder, content)) as checkpoint, pytest.raises(CheckpointError, match="holds"):
        _ = checkpoint.tensors


def test_a_whole_module_is_refused(folder: Path):
    """Unpickling one imports its class."""
    sentence = r"would call 'torch\.nn\.modules\.linear\.Linear'"
    with open_checkpoint(write(folder, torch.nn.Linear(2, 2))) as checkpoint:
        assert checkpoint.format == "pickle"
        with pytest.raises(CheckpointError, match=sentence):
            _ = checkpoint.tensors


def test_the_old_kind_of_pickle_is_refused(folder: Path):
    """It can't be mapped; catches torch's own advice to save it again in the person's face."""
    write(folder, {"a": torch.ones(2)}, _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is a pickle as PyTorch wrote them before version 1"):
        open_checkpoint(folder)


def test_integers_are_refused_by_name_when_asked_for(folder: Path):
    """A mask of an old file may stand there, as long as no parameter is read from it."""
    write(folder, {"mask": torch.ones(2, dtype=torch.uint8), "w": torch.ones(2)})
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.tensors["mask"].type == "U8"
        assert checkpoint.tensors["w"].dense(torch.float32).tolist() == [1, 1]
        with pytest.raises(UnsupportedModel, match=r"'mask'.*stored as U8"):
            checkpoint.tensors["mask"].dense(torch.float32)


def test_a_file_that_is_cut_short_is_named_at_once(folder: Path):
    """The list of what a ZIP archive holds stands at its end: an interrupted download has none."""
    write(folder, {"a": torch.ones(3000)})
    data = (folder / "pytorch_model.bin").read_bytes()
    (folder / "pytorch_model.bin").write_bytes(data[:9000])
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is cut short: it has 9,000 bytes"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is an empty file"),
        (b"<html>404", "is an HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        (b"GGUF", "is a GGUF file, not a ZIP archive"),
        (b"hello", "is a file of another kind, not a ZIP archive"),
    ],
)
def test_files_of_other_kinds_are_told(folder: Path, content, sentence):
    """Catches torch's own words about pickles for a page of an error."""
    (folder / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(CheckpointError, match=sentence):
        open_checkpoint(folder)


@given(data=st.data())
def test_damaged_files_never_end_in_a_traceback(tmp_path_factory, data):
    """Any byte may be wrong: it is read, or refused by a sentence."""
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    write(folder, {"a": torch.ones(2, 3), "b": torch.ones(3, dtype=torch.float16)})
    damaged = bytearray((folder / "pytorch_model.bin").read_bytes())
    for place in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=4)):
        damaged[place] = data.draw(st.integers(0, 255))
    (folder / "pytorch_model.bin").write_bytes(damaged)
    with contextlib.suppress(TinychatError):
        tensors_of(folder)


def test_safetensors_come_first(tiny: Tiny, tmp_path: Path):
    """Catches a pickle opened where nobody needs it."""
    folder = Path(shutil.copytree(tiny.safetensors("gpt2").path, tmp_path / "both"))
    (folder / "pytorch_model.bin").write_bytes(b"PK\3\4 not at all")
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.format == "safetensors"


def test_a_missing_shard_is_named(tiny: Tiny, tmp_path: Path):
    """Skipped in silence, it gives garbage text."""
    folder = Path(shutil.copytree(tiny.pickled("gpt2", shards=True).path, tmp_path / "shards"))
    (folder / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(CheckpointError, match=r"lacks 'pytorch_model-00002-of-00002\.bin', 1 of the 2 files"):
        open_checkpoint(folder)
    (folder / "pytorch_model.bin.index.json").unlink()
    with pytest.raises(
        CheckpointError, match=r"has pytorch_model-00001-of-00002\.bin, but no pytorch_model\.bin\.index"
    ):
        open_checkpoint(folder)


def test_a_shard_has_to_hold_what_the_index_says(tiny: Tiny, tmp_path: Path):
    """Catches a shard of another model, seen when the tensors are listed."""
    folder = Path(shutil.copytree(tiny.pickled("gpt2", shards=True).path, tmp_path / "shards"))
    index = folder / "pytorch_model.bin.index.json"
    where = json.loads(index.read_text())
    where["weight_map"]["extra"] = "pytorch_model-00001-of-00002.bin"
    index.write_text(json.dumps(where))
    sentence = r"pytorch_model-00001-of-00002\.bin lacks 'extra'"
    with open_checkpoint(folder) as checkpoint, pytest.raises(CheckpointError, match=sentence):
        _ = checkpoint.tensors
