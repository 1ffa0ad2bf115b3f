"""One thread for tiny models: two that share the machine with anything else wait for each other all the time."""

from __future__ import annotations

import pytest
import torch

from tinychat.kernels import fused


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Torch and the fused kernels use the test's own thread alone."""
    torch.set_num_threads(1)
    fused.set_threads(1)
