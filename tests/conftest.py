"""What the tests of several rooms share. Heavy imports stand inside the fixtures that need them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tiny import Tiny
    from transformers import LlamaForCausalLM


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Tiny random checkpoints of both families, in every format, each with the transformers model it holds."""
    from tiny import Tiny

    return Tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def smollm2(pytestconfig: pytest.Config) -> Path:
    """The real default model's file. Tests that ask for it carry the marker `model`."""
    from smollm2 import smollm2_file

    return smollm2_file(pytestconfig.cache.mkdir("smollm2"))


@pytest.fixture(scope="session")
def smollm2_reference(smollm2: Path) -> LlamaForCausalLM:
    """Transformers' model of the real file's dequantised weights, in fp32."""
    from gguf_files import llama_of

    return llama_of(smollm2)
