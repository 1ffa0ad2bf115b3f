"""A model folder: what is wrong with it is said of the file that is wrong."""

from __future__ import annotations

import contextlib
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import Tiny

from tinychat.errors import CheckpointError, ModelNotFound, TinychatError, UnsupportedModel
from tinychat.weights import open_checkpoint


def entry(kind: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}


def pack(header: dict[str, Any] | str | bytes, data: bytes = b"") -> bytes:
    text = header if isinstance(header, (bytes, str)) else json.dumps(header)
    text = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(text)) + text + data


SOUND = {"__metadata__": {"format": "pt"}, "a": entry("F32", [2, 3], 8, 32), "b": entry("BF16", [2, 2], 0, 8)}
DATA = struct.pack("<4H6f", *[0x3F80] * 4, *range(6))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a hand-made file of two tensors."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes(pack(SOUND, DATA))
    return tmp_path


def test_a_sound_folder_is_read(folder: Path):
    """The cases below are made from it; tensors come in the order of their bytes, not of the header."""
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.path == folder
        assert checkpoint.format == "safetensors"
        assert checkpoint.config == {"model_type": "llama"}
        assert checkpoint.generation_config == {}
        assert list(checkpoint.tensors) == ["b", "a"]
        tensor = checkpoint.tensors["a"]
        assert (tensor.name, tensor.shape, tensor.type, tensor.nbytes) == ("a", (2, 3), "F32", 24)
        assert tensor.file == folder / "model.safetensors"
        assert torch.equal(tensor.dense(torch.float32), torch.arange(6.0).view(2, 3))
        assert torch.equal(checkpoint.tensors["b"].dense(torch.float32), torch.ones(2, 2))


def test_scalars_and_empty_tensors_are_tensors(folder: Path):
    """Both are legal in safetensors; old GPT-2 files hold a scalar a layer."""
    header = {"s": entry("F32", [], 0, 4), "e": entry("F32", [0, 3], 4, 4), "v": entry("F16", [2], 4, 8)}
    (folder / "model.safetensors").write_bytes(pack(header, struct.pack("<f2e", -1e4, 1, 2)))
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.tensors["s"].dense(torch.float32).item() == -1e4
        assert checkpoint.tensors["e"].dense(torch.bfloat16).shape == (0, 3)
        assert checkpoint.tensors["v"].dense(torch.float32).tolist() == [1, 2]


def test_types_that_are_no_weights_keep_their_names(folder: Path):
    """GPT-2's boolean masks must not keep the file from opening, and must not become weights."""
    header = {"mask": entry("BOOL", [4], 0, 4), "new": entry("F4", [4, 2], 4, 8)}
    (folder / "model.safetensors").write_bytes(pack(header, bytes(8)))
    with open_checkpoint(folder) as checkpoint:
        assert {tensor.type for tensor in checkpoint.tensors.values()} == {"BOOL", "F4"}
        with pytest.raises(UnsupportedModel, match=r"'mask'.*BOOL"):
            checkpoint.tensors["mask"].dense(torch.float32)


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is an empty file"),
    "seven bytes": (b"\0" * 7, "it has 7 bytes"),
    "LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer"),
    "web page": (b"\n<!doctype HTML><html>not found", "an HTML page"),
    "pickle": (b"PK\x03\x04" + bytes(60), "ZIP archive"),
    "GGUF": (b"GGUF\x03" + bytes(60), "a GGUF file, not a safetensors file"),
    "text": (b"not a model at all", "announce a header of"),
    "header longer than the file": (struct.pack("<Q", 1000) + b"{}", r"header of 1,000 bytes, but has 10 bytes in all"),
    "header of exabytes": (struct.pack("<Q", 2**62) + b"{}", "announce a header of 4,611,"),
    "header that is no JSON": (pack('{"a": '), "its header isn't JSON"),
    "header that is no UTF-8": (pack(b'{"\xff": 1}'), "its header isn't JSON"),
    "header that is a list": (pack("[]"), "its header isn't a JSON object"),
    "deep header": (pack('{"a":' * 100_000), "its header isn't JSON"),
    "enormous number": (pack('{"a": ' + "9" * 5000 + "}"), "its header isn't JSON"),
    "name twice": (pack('{"a": 1, "a": 2}'), "'a' stands there twice"),
    "entry that is a number": (pack({"a": 1}), "entry for 'a' isn't a tensor's"),
    "shape missing": (pack({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, bytes(4)), "entry for 'a'"),
    "negative length": (pack({"a": entry("F32", [-1, -1], 0, 4)}, bytes(4)), "entry for 'a'"),
    "length that is true": (pack({"a": entry("F32", [True], 0, 4)}, bytes(4)), "entry for 'a'"),
    "length that is a fraction": (pack({"a": entry("F32", [1.0], 0, 4)}, bytes(4)), "entry for 'a'"),
    "offsets that are texts": (pack({"a": entry("F32", [1], "0", "4")}, bytes(4)), "entry for 'a'"),
    "offsets backwards": (pack({"a": entry("F4", [1], 4, 0)}, bytes(4)), "entry for 'a'"),
    "offsets below zero": (pack({"a": entry("F32", [1], -4, 0)}, bytes(4)), "entry for 'a'"),
    "shape and bytes at odds": (
        pack({"a": entry("F16", [3, 5], 0, 4)}, bytes(4)),
        r"'a', \[3, 5\] of F16, needs 30 bytes, but has 4",
    ),
    "enormous shape": (pack({"a": entry("F32", [2**62, 2**62], 0, 4)}, bytes(4)), "'a'.* bytes, but has 4"),
    "cut short": (pack(SOUND, DATA[:-1]), r"cut short: its tensors reach to byte \d+, but the file has \d+ bytes"),
    "bytes too many": (pack(SOUND, DATA + b"x"), r"its tensors end at byte \d+, but the file has \d+ bytes"),
    "overlap": (
        pack({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, bytes(12)),
        r"'b' begins at byte \d+, but the one before it ends at \d+",
    ),
    "gap": (pack({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)}, bytes(12)), "'b' begins at byte"),
    "no tensors, but bytes": (pack({}, bytes(4)), "its tensors end at byte"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_safetensors_are_refused_in_a_sentence(folder: Path, case):
    """Each names the file and the numbers; none is a KeyError, a RecursionError or a wrong tensor."""
    data, sentence = HOSTILE[case]
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=sentence) as caught:
        open_checkpoint(folder)
    assert str(folder / "model.safetensors") in caught.value.summary


def test_every_truncation_is_refused(folder: Path):
    """A download cut at any byte opens as nothing at all."""
    data = pack(SOUND, DATA)
    for length in range(len(data)):
        (folder / "model.safetensors").write_bytes(data[:length])
        with pytest.raises(CheckpointError):
            open_checkpoint(folder)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flips=st.lists(st.tuples(st.integers(0, len(pack(SOUND, DATA)) - 1), st.integers(0, 255)), min_size=1, max_size=4)
)
def test_damaged_files_end_in_our_own_errors_or_are_read(folder: Path, flips):
    """Any bytes changed: never another exception, never more memory than the file can hold."""
    data = bytearray(pack(SOUND, DATA))
    for at, byte in flips:
        data[at] = byte
    (folder / "model.safetensors").write_bytes(data)
    with contextlib.suppress(TinychatError), open_checkpoint(folder) as checkpoint:
        for stored in checkpoint.tensors.values():
            stored.dense(torch.float32)
            stored.blocks()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(["F32", "I8"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "a", "__metadata__"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(header=JSON)
def test_headers_of_any_json_end_in_our_own_errors_or_are_read(folder: Path, header):
    """JSON of the right words in the wrong places."""
    (folder / "model.safetensors").write_bytes(pack(json.dumps(header), bytes(8)))
    with contextlib.suppress(TinychatError), open_checkpoint(folder) as checkpoint:
        for stored in checkpoint.tensors.values():
            stored.dense(torch.float32)


# ---------------------------------------------------------------------------------------------------------------------
# config.json, generation_config.json


def test_generation_config_is_read_where_there_is_one(folder: Path):
    """Its end ids and sampler defaults are part of the model."""
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.generation_config == {"eos_token_id": [1, 2]}


def test_a_byte_order_mark_and_windows_line_ends_are_read(folder: Path):
    """Editors on Windows write both."""
    (folder / "config.json").write_bytes(b'\xef\xbb\xbf{\r\n"model_type": "llama"\r\n}')
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.config == {"model_type": "llama"}


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is an empty file"),
        (b'{"a": 1,}', "isn't JSON: .*line 1 column 9"),
        (b'{"a": "\xff"}', "isn't JSON"),
        (b"[1]", "isn't a JSON object"),
        (b"[" * 100_000, "isn't JSON"),
        (b"<html>404", "is an HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
    ],
)
def test_a_broken_configuration_is_named(folder: Path, name, content, sentence):
    """Catches a traceback out of json, and a generation_config that is passed over in silence."""
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=sentence) as caught:
        open_checkpoint(folder)
    assert str(folder / name) in caught.value.summary


def test_a_folder_without_config_is_no_model(folder: Path):
    """Where a GGUF file lies in it, the remedy is its path."""
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        open_checkpoint(folder)
    (folder / "m.gguf").touch()
    with pytest.raises(CheckpointError, match=r"m\.gguf"):
        open_checkpoint(folder)


# ---------------------------------------------------------------------------------------------------------------------
# Which files there are


@pytest.mark.parametrize("name", ["consolidated.00.pth", "model.pt", "adapter.bin"])
def test_pickles_under_other_names_are_not_opened(folder: Path, name):
    """Which tensors they hold is anyone's guess; the sentence names the file that is there."""
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(UnsupportedModel, match=rf"has {name}, but tinychat reads model\.safetensors and pytorch_model"):
        open_checkpoint(folder)


def test_a_folder_of_no_weights_says_so(folder: Path):
    """Catches a model of no tensors."""
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="has no weights"):
        open_checkpoint(folder)


def test_shards_without_their_index_are_not_guessed_at(folder: Path):
    """The index alone says how many there should be of what."""
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    with pytest.raises(CheckpointError, match=r"no model\.safetensors\.index\.json"):
        open_checkpoint(folder)


def test_paths_that_are_no_model(folder: Path):
    """A missing path, and the file where the folder is meant."""
    with pytest.raises(ModelNotFound, match="nowhere"):
        open_checkpoint(folder / "nowhere")
    with pytest.raises(CheckpointError, match="without its configuration") as caught:
        open_checkpoint(folder / "model.safetensors")
    assert str(folder) in caught.value.remedy


def test_a_folder_in_the_place_of_the_file_is_named(folder: Path):
    """Catches an IsADirectoryError."""
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a file"):
        open_checkpoint(folder)


@pytest.fixture
def sharded(tiny: Tiny, tmp_path: Path) -> Path:
    """A copy of a model of many shards, to be broken."""
    return Path(shutil.copytree(tiny.safetensors("llama", "BF16", shards=True).path, tmp_path / "sharded"))


def edit_index(folder: Path, **changes: str | None) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"] |= changes
    index["weight_map"] = {name: file for name, file in index["weight_map"].items() if file is not None}
    path.write_text(json.dumps(index))


def test_a_missing_shard_is_named(sharded: Path):
    """Skipped in silence, it gives garbage text."""
    shards = sorted(sharded.glob("*.safetensors"))
    shards[1].unlink()
    with pytest.raises(CheckpointError, match=rf"lacks '{shards[1].name}', 1 of the {len(shards)} files"):
        open_checkpoint(sharded)


def test_a_tensor_the_index_promises_has_to_be_there(sharded: Path):
    """Catches a shard of another revision."""
    edit_index(sharded, extra="model-00001-of-00002.safetensors".replace("00002", f"{count(sharded):05}"))
    with pytest.raises(CheckpointError, match=r"model-00001-of.*lacks 'extra', 1 of the \d+ tensors"):
        open_checkpoint(sharded)


def test_a_tensor_the_index_does_not_know_is_refused(sharded: Path):
    """Catches a shard of another model."""
    edit_index(sharded, **{"model.norm.weight": None})
    with pytest.raises(CheckpointError, match=r"holds 'model\.norm\.weight', which"):
        open_checkpoint(sharded)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "a\\b", "C:x"])
def test_an_index_cannot_name_files_elsewhere(sharded: Path, name):
    """Catches paths that climb out of the folder."""
    edit_index(sharded, **{"model.norm.weight": name})
    with pytest.raises(CheckpointError, match="is not a file beside it"):
        open_checkpoint(sharded)


@pytest.mark.parametrize("index", ["{}", '{"weight_map": {}}', '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_an_index_without_a_map_is_refused(sharded: Path, index):
    """Catches a model of no tensors, and a TypeError."""
    (sharded / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match="has no weight_map"):
        open_checkpoint(sharded)


def count(folder: Path) -> int:
    return len(list(folder.glob("*.safetensors")))
