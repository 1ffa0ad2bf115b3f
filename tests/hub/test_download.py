"""A model of the Hub comes whole, alone, once, and each way it can fail is a sentence."""

from __future__ import annotations

import errno
import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from loopback_hub import Fault, page, short_body, stall, stalled_body, status

from tinychat import hub
from tinychat.catalog import Catalog, ModelCard
from tinychat.errors import Cancelled, CheckpointError, DownloadError, TinychatError, UnsupportedModel

GPT2 = "openai-community/gpt2"
NEEDED = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


def card(name: str) -> ModelCard:
    return Catalog.load().resolve(name)


def fetch(name: str = GPT2, **options: object) -> Path:
    return hub.fetch(card(name), lambda *_: None, threading.Event(), **options)


@pytest.fixture
def server(loopback_hub):
    return loopback_hub.server


def wait_until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.01)


# ---------------------------------------------------------------------------------------------------------------------
# What comes


def test_only_the_files_a_model_needs_come(server) -> None:
    """Pickles, other frameworks' weights and duplicates would multiply what a person has to download."""
    extra = ("pytorch_model.bin", "tf_model.h5", "onnx/model.onnx", "consolidated.safetensors", "README.md")
    server.repos[GPT2].files |= dict.fromkeys(extra, b"unwanted")
    server.repos[GPT2].files["chat_template.jinja"] = b"{{ messages }}"
    server.repos[GPT2].files["sub/config.json"] = b"{}"
    folder = fetch()
    assert {path.name for path in folder.iterdir()} == NEEDED | {"chat_template.jinja"}
    for name in NEEDED:
        assert (folder / name).read_bytes() == server.repos[GPT2].files[name]
    assert not any(name.split("/")[-1] in path for name in extra for path in server.asked())
    # All of one commit: main may move between two files.
    assert all(f"/resolve/{server.repos[GPT2].commit}/" in path for path in server.asked(part="/resolve/"))


def test_progress_counts_the_bytes_of_all_files_once(server) -> None:
    """A bar that runs past its end, goes back, or ends short of it."""
    seen: list[tuple[str, int, int]] = []
    hub.fetch(card(GPT2), lambda *report: seen.append(report), threading.Event())
    total = sum(len(server.repos[GPT2].files[name]) for name in NEEDED)
    done = [report[1] for report in seen]
    assert done == sorted(done)
    assert seen[-1][1:] == (total, total)
    assert {file for file, _, _ in seen} == NEEDED
    weights = [report for report in seen if report[0] == "model.safetensors"]
    assert len(weights) > 20  # 6.7 MB: a tick every 256 KiB, not one at the end
    assert {report[2] for report in seen} <= {0, total}


def test_the_cache_is_the_one_other_programs_use(server, loopback_hub) -> None:
    """A layout of our own would make every other program download the model again."""
    from huggingface_hub import scan_cache_dir, snapshot_download, try_to_load_from_cache

    folder = fetch()
    assert try_to_load_from_cache(GPT2, "config.json", revision="main") == str(folder / "config.json")
    found = scan_cache_dir(loopback_hub.home / "hub")
    assert not found.warnings
    assert [(repo.repo_id, {*repo.refs}) for repo in found.repos] == [(GPT2, {"main"})]
    assert snapshot_download(GPT2, local_files_only=True) == str(folder)


def test_what_other_programs_fetched_is_used(server) -> None:
    """The other direction: a model that transformers has fetched must not be downloaded again."""
    from huggingface_hub import hf_hub_download

    for name in NEEDED:
        hf_hub_download(GPT2, name)
    before = len(server.requests)
    assert {path.name for path in fetch().iterdir()} == NEEDED
    assert len(server.requests) == before


def test_a_cached_model_starts_without_a_request_and_without_a_network(server) -> None:
    """A program that asks the Hub first hangs on a train."""
    folder = fetch()
    before = len(server.requests)
    assert fetch() == folder == hub.located(card(GPT2))
    assert len(server.requests) == before
    server.close()
    assert fetch() == folder


def test_nothing_is_located_before_it_is_whole(server) -> None:
    """A half-downloaded model that is taken for a whole one fails later, with a worse message."""
    assert hub.located(card(GPT2)) is None
    server.fault("GET", "/storage/*", status(500))
    with pytest.raises(DownloadError):
        fetch()
    assert hub.located(card(GPT2)) is None
    server.faults.clear()
    before = len(server.requests)
    folder = fetch()
    assert hub.located(card(GPT2)) == folder
    again = [path for verb, path, _ in server.requests[before:] if verb == "GET" and "/resolve/" in path]
    assert again == []  # what had come whole was not fetched twice
    (folder / "model.safetensors").resolve().unlink()
    assert hub.located(card(GPT2)) is None


def test_revisions_are_kept_apart(server) -> None:
    """`@v1` answered from the files of main."""
    repo = server.repos[GPT2]
    main = fetch()
    repo.revisions["v1"] = "1" * 40
    other = fetch(f"{GPT2}@v1")
    assert other.name == "1" * 40
    assert main.name == repo.commit
    assert hub.located(card(f"{GPT2}@v1")) == other
    before = len(server.requests)
    assert fetch(f"{GPT2}@{'1' * 40}") == other  # a commit needs no request at all
    assert len(server.requests) == before


def sharded(server, **index: object) -> dict[str, bytes]:
    files = {name: data for name, data in server.repos[GPT2].files.items() if name != "model.safetensors"}
    names = {"wte.weight": "model-00001-of-00002.safetensors", "wpe.weight": "model-00002-of-00002.safetensors"}
    files["model.safetensors.index.json"] = json.dumps({"weight_map": names} | index).encode()
    for number, name in enumerate(sorted(names.values())):
        files[name] = bytes([number]) * 400_000
    return files


def test_a_sharded_model_comes_by_its_index(server) -> None:
    """A missing shard, or shards of another format that happen to lie beside them."""
    server.add("org/sharded").files = sharded(server) | {"model-00003-of-00003.safetensors": b"stray"}
    seen: list[tuple[str, int, int]] = []
    folder = hub.fetch(card("org/sharded"), lambda *report: seen.append(report), threading.Event())
    names = {path.name for path in folder.iterdir()}
    assert {name for name in names if name.endswith(".safetensors")} == {
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }
    assert seen[-1][1] == seen[-1][2] == sum(path.stat().st_size for path in folder.iterdir())
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert hub.located(card("org/sharded")) is None


def test_pickles_come_where_there_are_no_safetensors(server) -> None:
    """A model of before safetensors that can't be had; files of other formats beside it."""
    files = {name: data for name, data in server.repos[GPT2].files.items() if name != "model.safetensors"}
    server.add("org/old").files = files | {"pytorch_model.bin": b"PK" * 1000, "tf_model.h5": b"x"}
    folder = fetch("org/old")
    assert {path.name for path in folder.iterdir()} == NEEDED - {"model.safetensors"} | {"pytorch_model.bin"}
    assert hub.located(card("org/old")) == folder
    assert "org/old" in {entry.name for entry in hub.installed(Catalog.load()) if entry.complete}


def test_pickled_shards_come_by_their_index(server) -> None:
    """An index of pickles that lists other files, and a shard that is gone unnoticed."""
    files = {name: data for name, data in server.repos[GPT2].files.items() if name != "model.safetensors"}
    shards = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    index = {"weight_map": {"wte.weight": shards[0], "wpe.weight": shards[1]}}
    files |= {"pytorch_model.bin.index.json": json.dumps(index).encode()} | dict.fromkeys(shards, b"PK" * 1000)
    server.add("org/old").files = files
    folder = fetch("org/old")
    assert {path.name for path in folder.glob("*.bin")} == set(shards)
    (folder / shards[1]).unlink()
    assert hub.located(card("org/old")) is None
    server.repos["org/old"].files["pytorch_model.bin.index.json"] = b'{"weight_map": {"a": "x.safetensors"}}'
    server.add("org/mixed").files = dict(server.repos["org/old"].files)
    with pytest.raises(CheckpointError, match="is not an index of files of weights"):
        fetch("org/mixed")


@pytest.mark.parametrize(
    ("index", "error", "words"),
    [
        ({"weight_map": {"a": "gone.safetensors"}}, DownloadError, ["lacks gone.safetensors", "index"]),
        ({"weight_map": {"a": "../../x.safetensors"}}, CheckpointError, ["../../x.safetensors", "not to be trusted"]),
        ({"weight_map": {}}, CheckpointError, ["is not an index"]),
        ({"weight_map": [1]}, CheckpointError, ["is not an index"]),
    ],
)
def test_an_index_is_not_trusted(server, index: dict[str, object], error: type[Exception], words: list[str]) -> None:
    """A shard that isn't there, or a name that leaves the folder."""
    server.add("org/sharded").files = sharded(server, **index)
    with pytest.raises(error) as caught:
        fetch("org/sharded")
    assert all(word in str(caught.value) for word in words)


def test_the_architecture_is_judged_before_weights_come(server) -> None:
    """Gigabytes that are refused after they were downloaded."""
    judged: list[str] = []

    def judge(config: dict[str, object]) -> None:
        judged.append(str(config["model_type"]))
        raise UnsupportedModel("No.", "Really.")

    with pytest.raises(UnsupportedModel, match="No"):
        fetch(judge=judge)
    assert judged == ["gpt2"]
    assert not server.asked(part="/storage/")
    assert not server.asked("GET", "tokenizer.json")


def test_a_tokenizer_comes_without_the_weights_and_the_weights_can_follow(server) -> None:
    """`tinychat tokenize gpt2` would download half a gigabyte; or a tokenizer would count as a whole model."""
    folder = fetch(weights=False)
    assert {path.name for path in folder.iterdir()} == NEEDED - {"model.safetensors"}
    assert hub.located(card(GPT2), weights=False) == folder
    assert hub.located(card(GPT2)) is None
    assert fetch() == folder
    assert hub.located(card(GPT2)) == folder


def test_one_gguf_file_of_a_repository(server) -> None:
    """A repository of twenty quantisations must not be downloaded for one of them."""
    server.add("org/m-GGUF").files = {"q4/m.Q4_0.gguf": b"GGUF" + bytes(1000), "m.Q8_0.gguf": b"GGUF", "README.md": b""}
    path = fetch(f"{server.url}/org/m-GGUF/blob/main/q4/m.Q4_0.gguf")
    assert path.read_bytes() == b"GGUF" + bytes(1000)
    assert path.name == "m.Q4_0.gguf"
    assert not server.asked(part="README")
    assert len(server.asked("GET", "/storage/")) == 1
    with pytest.raises(DownloadError, match=r"one has to be named.*/blob/main/m\.Q8_0\.gguf \(2 in all\)"):
        fetch("org/m-GGUF")
    with pytest.raises(DownloadError, match=r"has no file other\.gguf.*/blob/main/m\.Q8_0\.gguf"):
        fetch(f"{server.url}/org/m-GGUF/blob/main/other.gguf")


# ---------------------------------------------------------------------------------------------------------------------
# What goes wrong

API = f"/api/models/{GPT2}/revision/main"
BODY = "/storage/*"


@pytest.mark.parametrize(
    ("method", "path", "fault", "words"),
    [
        ("GET", API, status(404, X_Error_Code="RevisionNotFound"), ["no revision main", "lists its branches"]),
        ("GET", API, status(503), ["answered 503", "Try again later", "tinychat run smollm2"]),
        ("GET", API, status(429), ["too many requests"]),
        ("GET", API, page, ["in place of 127.0.0.1", "login in the browser", "HF_ENDPOINT"]),
        ("HEAD", f"/{GPT2}/resolve/*", page, ["in place of 127.0.0.1", "login in the browser"]),
        ("HEAD", f"/{GPT2}/resolve/*", status(404, X_Error_Code="EntryNotFound"), ["gone from the Hub"]),
        ("GET", BODY, status(500), ["answered 500"]),
        ("GET", BODY, short_body, ["ended before all of it had come", "whole files are kept"]),
    ],
)
def test_each_failure_is_a_sentence_with_a_way_on(
    server, method: str, path: str, fault: Fault, words: list[str]
) -> None:
    """A traceback of an HTTP client, or "an error happened"."""
    server.fault(method, path, fault)
    with pytest.raises(DownloadError) as caught:
        fetch()
    assert caught.value.remedy
    for word in words:
        assert word in str(caught.value)


def test_an_unknown_repository_is_told_from_its_near_miss(server) -> None:
    """`openai/gpt2` is what people type; the Hub answers 401, as it does for private ones."""
    with pytest.raises(DownloadError, match=r"no model openai/gpt2, or it is private.*Did you mean `gpt2`\?"):
        fetch("openai/gpt2")
    with pytest.raises(DownloadError, match=r"no model org/unheard-of, or it is private.*HF_TOKEN"):
        fetch("org/unheard-of")
    with pytest.raises(DownloadError, match=r"gpt2 has no revision v9"):
        fetch(f"{GPT2}@v9")


def test_no_network_offers_the_model_that_needs_no_hub(server) -> None:
    """The first thing a person behind a firewall sees has to lead somewhere."""
    server.close()
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1:\d+ can't be reached: .*refused.*tinychat run smollm2"):
        fetch()


def test_offline_is_said_to_be_the_reason(server, monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_HUB_OFFLINE set long ago and forgotten looks like a broken network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match=r"HF_HUB_OFFLINE is set, and openai-community/gpt2@main is not"):
        fetch()
    assert server.requests == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    folder = fetch()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch() == folder


def test_a_gated_model_has_three_sentences(server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a token, with a wrong one, with one whose owner has not accepted: each needs another remedy."""
    server.repos[GPT2].gated = True
    server.tokens = {"hf_known": set(), "hf_let_in": {GPT2}}
    page_address = f"{server.url}/{GPT2}"
    with pytest.raises(DownloadError, match=r"is gated: .*licence.*HF_TOKEN") as no_token:
        fetch()
    assert page_address in str(no_token.value)
    monkeypatch.setenv("HF_TOKEN", "hf_made_up")
    with pytest.raises(DownloadError, match=r"does not accept the token in HF_TOKEN.*public models need none") as wrong:
        fetch()
    monkeypatch.setenv("HF_TOKEN", "hf_known")
    with pytest.raises(DownloadError, match=r"account of HF_TOKEN has not been let in.*Accept the licence") as stranger:
        fetch()
    assert page_address in str(stranger.value)
    for error in (no_token, wrong, stranger):
        assert "hf_" not in str(error.value)
    monkeypatch.setenv("HF_TOKEN", "hf_let_in")
    assert (fetch() / "model.safetensors").exists()


def test_a_stored_token_is_named_by_its_file(server, loopback_hub) -> None:
    """A person who never set HF_TOKEN would look for it in vain."""
    (loopback_hub.home).mkdir()
    (loopback_hub.home / "token").write_text("hf_stored_and_wrong")
    with pytest.raises(DownloadError, match=r"does not accept the token in .*/hf-home/token"):
        fetch()


def test_the_token_goes_to_the_hub_alone(server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large files lie on another host, which has no business with the token."""
    monkeypatch.setenv("HF_TOKEN", "hf_known")
    server.tokens = {"hf_known": set()}
    fetch()
    assert {token for _, path, token in server.requests if path.startswith("/storage/")} == {""}
    assert {token for _, path, token in server.requests if not path.startswith("/storage/")} == {"hf_known"}


@pytest.mark.parametrize(
    ("files", "error", "words"),
    [
        ({"consolidated.00.pth": b""}, UnsupportedModel, ["no weights tinychat knows", "only consolidated.00.pth"]),
        ({"README.md": b""}, UnsupportedModel, ["no weights tinychat knows"]),
        ({"pytorch_model.bin": b""}, UnsupportedModel, ["no config.json"]),
        ({"model.safetensors": b""}, UnsupportedModel, ["no config.json"]),
        ({"model.safetensors": b"", "config.json": b"{}"}, UnsupportedModel, ["no tokenizer.json"]),
        (
            {"model.safetensors": b"", "config.json": b"[]", "tokenizer.json": b"{}"},
            CheckpointError,
            ["config.json", "not a JSON object"],
        ),
    ],
)
def test_a_repository_of_something_else_is_refused_before_its_weights(
    server, files: dict[str, bytes], error: type[TinychatError], words: list[str]
) -> None:
    """A repository of other pickles is never opened; one without a tokenizer is of no use."""
    server.add("org/other").files = files
    with pytest.raises(error) as caught:
        fetch("org/other", judge=lambda config: None)
    for word in ["org--other" if error is CheckpointError else "org/other", *words]:
        assert word in str(caught.value)
    assert not server.asked(part="/storage/")
    assert not server.asked("GET", ".bin")


def test_a_disk_too_small_is_found_before_the_weights_come(server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten minutes of download, then "no space left on device"."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=10**9, used=0, free=2_500_000))
    with pytest.raises(DownloadError, match=r"gpt2 needs 10 MB, but only 2 MB are free in .*HF_HOME"):
        fetch()
    assert not server.asked(part="/storage/")


def test_what_is_cached_needs_no_space_again(server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of which only the small files are missing must not be refused for the size of its weights."""
    from huggingface_hub import hf_hub_download

    hf_hub_download(GPT2, "model.safetensors")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=10**9, used=0, free=4_000_000))
    assert (fetch() / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "filled up"), (errno.EACCES, "can't be written"), (errno.EIO, "couldn't be stored")],
)
def test_a_disk_that_fails_on_the_way_is_a_sentence(server, loopback_hub, number: int, words: str) -> None:
    """Another program may fill the disk meanwhile; nothing half-written may stay."""

    def fail(file: str, done: int, total: int) -> None:
        if file == "model.safetensors":
            raise OSError(number, "as the operating system says it")

    with pytest.raises(DownloadError, match=words):
        hub.fetch(card(GPT2), fail, threading.Event())
    assert list(loopback_hub.home.rglob("*.incomplete")) == []


# ---------------------------------------------------------------------------------------------------------------------
# Cancel


@pytest.mark.parametrize(
    ("method", "path", "fault"),
    [("GET", API, stall), ("HEAD", f"/{GPT2}/resolve/*", stall), ("GET", BODY, stall), ("GET", BODY, stalled_body)],
)
def test_cancel_does_not_wait_for_a_silent_server(server, method: str, path: str, fault: Fault) -> None:
    """Esc that takes the ten seconds of a socket's timeout looks as if it did nothing."""
    server.fault(method, path, fault)
    cancelled = threading.Event()
    stamp: list[float] = []

    def cancel() -> None:
        wait_until(lambda: bool(server.asked(method, path.removesuffix("*"))))
        stamp.append(time.monotonic())
        cancelled.set()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(Cancelled):
        hub.fetch(card(GPT2), lambda *_: None, cancelled)
    assert time.monotonic() - stamp[0] < 1.0
    thread.join()


def test_cancel_between_two_chunks_leaves_no_partial_file(server, loopback_hub) -> None:
    """A temporary file of gigabytes that nobody will ever use again; and a report after the cancel."""
    cancelled = threading.Event()
    reports: list[str] = []

    def cancel_in_weights(file: str, done: int, total: int) -> None:
        reports.append(file)
        if file == "model.safetensors":
            cancelled.set()

    with pytest.raises(Cancelled):
        hub.fetch(card(GPT2), cancel_in_weights, cancelled)
    assert reports.count("model.safetensors") == 1
    assert list(loopback_hub.home.rglob("*.incomplete")) == []
    assert hub.located(card(GPT2)) is None
    assert (fetch() / "model.safetensors").exists()
