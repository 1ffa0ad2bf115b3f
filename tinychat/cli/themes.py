"""`tinychat themes`: what `--theme` takes."""

from __future__ import annotations

from tinychat import paths, resources
from tinychat.cli.console import Notices, Results


def themes() -> None:
    """List the screen's themes, one a line."""
    from textual.theme import BUILTIN_THEMES

    from tinychat.ui.themes import load_themes

    found, errors = load_themes([resources.find("themes"), paths.config_dir() / "themes"])
    notices = Notices()
    for error in errors:
        notices.line(str(error))
    results = Results()
    for name in dict.fromkeys([*(theme.name for theme in found), *BUILTIN_THEMES]):
        results.line(name)
