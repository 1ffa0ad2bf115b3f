"""themes/*.toml -> Textual themes. Every file is checked at the door; a bad one is named, skipped and harms nothing."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from textual.color import Color, ColorParseError
from textual.theme import Theme

from tinychat.errors import TinychatError

DEFAULT_THEME: Final = "tinychat-dark"

COLORS: Final = frozenset({
    "primary", "secondary", "accent", "warning", "error", "success", "foreground", "background", "surface", "panel",
})  # fmt: skip
"""Textual's own colours that a file may set in `[colors]`; `primary` has to be there."""

VARIABLES: Final = (
    "person", "model", "quiet", "rule", "chip-odd", "chip-even", "chip-text", "chip-cursor", "chip-cursor-text",
    "gauge-reused", "gauge-new", "gauge-free", "heat-1", "heat-2", "heat-3", "heat-4", "heat-5",
    "heat-text", "heat-glyph",
)  # fmt: skip
"""tinychat's own colours that a file may set in `[variables]`; what it leaves out is made from the others."""

_HEAT: Final = ("panel", "primary", "success", "warning", "error")
"""What the grounds of the five levels are mixed from, from what was expected to what surprises."""

_ANSI_VARIABLES: Final = {
    "person": "ansi_yellow", "model": "ansi_cyan", "quiet": "ansi_default", "rule": "ansi_bright_black",
    "chip-odd": "ansi_blue", "chip-even": "ansi_magenta", "chip-text": "ansi_bright_white",
    "chip-cursor": "ansi_yellow", "chip-cursor-text": "ansi_black",
    "gauge-reused": "ansi_cyan", "gauge-new": "ansi_yellow", "gauge-free": "ansi_bright_black",
    "heat-1": "ansi_white", "heat-2": "ansi_cyan", "heat-3": "ansi_green", "heat-4": "ansi_magenta",
    "heat-5": "ansi_red", "heat-text": "ansi_black", "heat-glyph": "ansi_black",
}  # fmt: skip
"""The same in a theme of the terminal's own sixteen colours, which can't be mixed."""


class ThemeError(TinychatError):
    """A theme file can't be used; the sentence names file, key and value."""


def load_theme(path: Path) -> Theme:
    """Read one theme file.

    Raises:
        ThemeError: The file can't be read, is no TOML, or has an unknown key or a value that is no colour.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ThemeError(f"The theme {path} can't be read: {error}.") from error
    _refuse_unknown(path, data, {"name", "dark", "colors", "variables"}, "")
    colors = _colors(path, data, "colors", COLORS)
    variables = _colors(path, data, "variables", frozenset(VARIABLES))
    name, dark = data.get("name", path.stem), data.get("dark", True)
    if not isinstance(name, str) or not name:
        raise ThemeError(f"The theme {path} has the name {name!r}, but a name is a text.")
    if not isinstance(dark, bool):
        raise ThemeError(f"The theme {path} has dark = {dark!r}, but dark is true or false.")
    if "primary" not in colors:
        raise ThemeError(f"The theme {path} has no colors.primary.", "Add one: everything left out is made from it.")
    fields: dict[str, Any] = {**colors, "variables": variables}
    return Theme(name=name, dark=dark, **fields)


def load_themes(folders: Iterable[Path]) -> tuple[list[Theme], list[ThemeError]]:
    """Read every `*.toml` of the folders that exist; return the themes, and what was wrong with those left out."""
    themes: list[Theme] = []
    errors: list[ThemeError] = []
    for folder in folders:
        for path in sorted(folder.glob("*.toml")):
            try:
                themes.append(load_theme(path))
            except ThemeError as error:
                errors.append(error)
    return themes, errors


def variable_defaults(theme: Theme) -> dict[str, str]:
    """Return a value for each of our variables that suits `theme`, whoever made it."""
    if theme.ansi:
        return dict(_ANSI_VARIABLES)
    base = theme.to_color_system().generate()
    background, foreground = Color.parse(base["background"]), Color.parse(base["foreground"])
    surface = Color.parse(base["surface"])

    def mixed(name: str, amount: float) -> str:
        """A chip's background: a theme colour far enough on the background's side for text to be read on it."""
        return background.blend(Color.parse(base[name]), amount).hex

    def warm(name: str) -> str:
        """A level's ground: as strong as the text on it can still be read."""
        strong = (background.blend(Color.parse(base[name]), amount) for amount in (0.6, 0.5, 0.4, 0.3, 0.2))
        return next((each.hex for each in strong if contrast(foreground, each) >= 4.6), mixed(name, 0.1))

    return {
        "person": base["text-accent"],
        "model": base["text-primary"],
        "quiet": _readable(foreground, (background, surface)).hex,
        "rule": background.blend(foreground, 0.2).hex,
        "chip-odd": mixed("primary", 0.3),
        "chip-even": mixed("secondary", 0.3),
        "chip-text": base["foreground"],
        "chip-cursor": base["foreground"],
        "chip-cursor-text": base["background"],
        **{f"heat-{level}": warm(name) for level, name in enumerate(_HEAT, 1)},
        "heat-text": base["foreground"],
        "heat-glyph": background.blend(foreground, 0.75).hex,
        "gauge-reused": base["text-primary"],
        "gauge-new": base["text-accent"],
        "gauge-free": background.blend(foreground, 0.25).hex,
    }


def _readable(foreground: Color, backgrounds: tuple[Color, ...]) -> Color:
    """Fade `foreground` towards the background as far as 4.5 to 1 allows, the least that counts as readable."""
    for amount in (0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05):
        faded = foreground.blend(backgrounds[0], amount)
        if all(contrast(faded, background) >= 4.6 for background in backgrounds):
            return faded
    return foreground


def contrast(one: Color, other: Color) -> float:
    """Return the contrast ratio of two colours, 1 to 21 (WCAG 2.2, relative luminance)."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: Color) -> float:
    def linear(channel: float) -> float:
        return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(channel) for channel in color.normalized)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _colors(path: Path, data: dict[str, Any], table: str, known: frozenset[str]) -> dict[str, str]:
    """Return one table of colours, each of them checked."""
    colors = data.get(table, {})
    if not isinstance(colors, dict):
        raise ThemeError(f"The theme {path} has {table} = {colors!r}, but {table} is a table.")
    _refuse_unknown(path, colors, known, f"{table}.")
    for key, value in colors.items():
        try:
            # Textual takes a wrong colour silently and fails much later, with a message that names nothing.
            Color.parse(value)
        except (ColorParseError, TypeError, AttributeError) as error:
            raise ThemeError(f"The theme {path} has {table}.{key} = {value!r}, which is no colour.") from error
    return colors


def _refuse_unknown(path: Path, data: dict[str, Any], known: Iterable[str], prefix: str) -> None:
    for key in data:
        if key not in known:
            raise ThemeError(
                f"The theme {path} has an unknown key, {prefix}{key}.", f"Known are {', '.join(sorted(known))}."
            )
