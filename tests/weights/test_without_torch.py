"""Headers are read before torch is imported: the inspector works while the model loads."""

from __future__ import annotations

import subprocess
import sys

from tiny import Tiny

PROGRAM = """
import sys
from pathlib import Path
from tinychat.weights import open_checkpoint
for path in sys.argv[1:]:
    with open_checkpoint(Path(path)) as checkpoint:
        assert checkpoint.config and (checkpoint.format == "pickle" or checkpoint.tensors)
print(*sorted({"torch", "gguf", "safetensors", "transformers"} & set(sys.modules)))
"""


def test_opening_a_checkpoint_imports_no_torch(tiny: Tiny):
    """Catches an import that would delay the screen by a second; of pickles, whose tensors only torch can list, too."""
    paths = [str(tiny.gguf("llama").path), str(tiny.safetensors("gpt2").path), str(tiny.pickled("gpt2").path)]
    run = subprocess.run([sys.executable, "-c", PROGRAM, *paths], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
