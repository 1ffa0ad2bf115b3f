"""Themes are data, checked at the door, and readable."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme

from tinychat import resources
from tinychat.ui.themes import VARIABLES, ThemeError, contrast, load_theme, load_themes, variable_defaults

OURS, _ = load_themes([resources.find("themes")])


def palette(theme: Theme) -> dict[str, Color]:
    """All colours a widget may use under `theme`."""
    names = {**variable_defaults(theme), **theme.to_color_system().generate(), **theme.variables}
    return {name: Color.parse(value) for name, value in names.items() if re.fullmatch("#[0-9A-Fa-f]+", value)}


def test_ours_are_there_and_sound() -> None:
    """Would catch: a theme of ours that its own checks refuse."""
    themes, errors = load_themes([resources.find("themes")])
    assert {theme.name for theme in themes} >= {"tinychat-dark", "tinychat-light"}
    assert errors == []
    assert {theme.dark for theme in themes} == {True, False}


TEXT = ["foreground", "quiet", "person", "model", "error", "warning", "success", "primary", "accent"]


@pytest.mark.parametrize("theme", OURS, ids=lambda theme: theme.name)
def test_text_is_readable(theme: Theme) -> None:
    """Would catch: grey on grey."""
    colors = palette(theme)
    for name in TEXT:
        for background in ("background", "surface", "panel"):
            assert contrast(colors[name], colors[background]) >= 4.5, (name, background)
    for background in ("chip-odd", "chip-even"):
        assert contrast(colors["chip-text"], colors[background]) >= 4.5, background
    assert contrast(colors["chip-cursor-text"], colors["chip-cursor"]) >= 4.5
    for mark in ("gauge-reused", "gauge-new"):
        assert contrast(colors[mark], colors["panel"]) >= 3, mark


@pytest.mark.parametrize("theme", BUILTIN_THEMES.values(), ids=lambda theme: theme.name)
def test_every_theme_has_all_our_variables(theme: Theme) -> None:
    """Would catch: the crash of an unresolved variable under a theme that is not ours."""
    defaults = variable_defaults(theme)
    assert set(defaults) == set(VARIABLES)
    for value in defaults.values():
        Color.parse(value)


@pytest.mark.parametrize("theme", [t for t in BUILTIN_THEMES.values() if not t.ansi], ids=lambda theme: theme.name)
def test_quiet_text_is_readable_in_foreign_themes(theme: Theme) -> None:
    """Would catch: a fixed fade that is fine in one theme and gone in another."""
    colors = palette(theme)
    wanted = min(4.5, contrast(colors["foreground"], colors["background"]))
    assert contrast(colors["quiet"], colors["background"]) >= wanted


def test_contrast_is_the_standard_one() -> None:
    """Would catch: a luminance without the gamma curve. Black on white is 21, #767676 on white the famous 4.54."""
    assert contrast(Color.parse("#000000"), Color.parse("#ffffff")) == pytest.approx(21)
    assert contrast(Color.parse("#767676"), Color.parse("#ffffff")) == pytest.approx(4.54, abs=0.01)


GOOD = 'name = "mine"\n[colors]\nprimary = "#123456"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[colors]\nprimary = "blurple"', "colors.primary = 'blurple', which is no colour"),
        ("[colors]\nprimary = 7", "colors.primary = 7, which is no colour"),
        ('[colors]\nprimary = "#123456"\nprimray = "#123456"', "unknown key, colors.primray"),
        ('[colors]\nprimary = "#123456"\n[variables]\nchips = "#123456"', "unknown key, variables.chips"),
        (GOOD + '[palette]\na = "#123456"', "unknown key, palette"),
        ("colors = 3", "colors = 3, but colors is a table"),
        ('[colors]\naccent = "#123456"', "no colors.primary"),
        ("dark = 3\n" + GOOD, "dark = 3, but dark is true or false"),
        ('name = ""\n[colors]\nprimary = "#123456"', "name ''"),
        ("[colors", "can't be read"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    """Would catch: a wrong colour or a misspelt key that crashes later, with a message that names nothing."""
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ThemeError) as caught:
        load_theme(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_bad_file_does_not_take_the_good_ones_along(tmp_path: Path) -> None:
    """Would catch: one broken theme that leaves the person without any."""
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "b.toml").write_text("\ufeff" + GOOD, encoding="utf-8", newline="\r\n")
    themes, errors = load_themes([tmp_path, tmp_path / "not there"])
    assert [theme.name for theme in themes] == ["mine"]
    assert len(errors) == 1
    assert "a.toml" in str(errors[0])
