"""Where tinychat keeps things: one function a folder, made when asked for.

Each can be moved by the platform's own variables (`XDG_CACHE_HOME` and its like). Models of the Hub don't live here:
they stay in the Hub's own cache, so that other programs find them.
"""

from __future__ import annotations

from pathlib import Path

import platformdirs

_APP = "tinychat"


def cache_dir() -> Path:
    """Folder for what can be fetched or computed again: models out of wheels, compiled kernels."""
    return _made(platformdirs.user_cache_path(_APP, appauthor=False))


def models_dir() -> Path:
    """Folder for model files that came from somewhere else than the Hub. Not made here: looking needs no folder."""
    return platformdirs.user_cache_path(_APP, appauthor=False) / "models"


def config_dir() -> Path:
    """Folder for what a person writes: settings, models.toml, themes of their own. Not made here."""
    return platformdirs.user_config_path(_APP, appauthor=False)


def data_dir() -> Path:
    """Folder for what is to stay: chats, and what was measured. Not made here: looking needs no folder."""
    return platformdirs.user_data_path(_APP, appauthor=False)


def state_dir() -> Path:
    """Folder for logs."""
    return _made(platformdirs.user_state_path(_APP, appauthor=False))


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
