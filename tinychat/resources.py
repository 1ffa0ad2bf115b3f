"""Finds the data files that travel with the program, in an installed wheel and in a checkout alike.

`models.toml` and `themes/` stand at the top of the project, where a person looks for them; the wheel carries them
inside the package as `tinychat/data/`.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def find(name: str) -> Path:
    """Return the path of `models.toml` or `themes`.

    Raises:
        FileNotFoundError: The installation is incomplete.
    """
    for folder in (_PACKAGE / "data", _PACKAGE.parent):
        if (folder / name).exists():
            return folder / name
    raise FileNotFoundError(f"{name} is not in this installation of tinychat ({_PACKAGE}); install it again.")
