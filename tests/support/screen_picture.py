"""A screen as an SVG picture: small, the same in every renderer, and with nothing in it that has to be fetched.

Textual's own export names fonts on a server and leaves it to them where a word ends; in the page of a project neither
comes true. Here every word is put in its place, and bars and rules are drawn as what they are, not as characters.
"""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final
from xml.sax.saxutils import escape

from rich.cells import cell_len
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from textual.app import App
from textual.strip import Strip

CELL: Final = (8, 18)
"""Width and height of a cell."""
_MARGIN: Final = 10
_FONTS: Final = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
_BELOW: Final = " ▁▂▃▄▅▆▇█"
_BESIDE: Final = " ▏▎▍▌▋▊▉█"
_RULES: Final = {"─": (0, 8, 8, 1), "━": (0, 8, 8, 2), "│": (4, 0, 1, 18), "║": (3, 0, 3, 18)}
"""What is drawn as a rectangle, and where in its cell: left, top, width, height."""
_NAMESPACE: Final = "{http://www.w3.org/2000/svg}"


def picture(app: App[None], title: str, description: str = "") -> str:
    """Return the screen of a running app as SVG; title and description are for whoever can't see it."""
    strips = app.screen._compositor.render_strips()
    width, height = app.size.width * CELL[0] + 2 * _MARGIN, app.size.height * CELL[1] + 2 * _MARGIN
    ground = _colours(app.screen.rich_style)[1]
    boxes, classes, texts = _drawn(strips, ground)
    rules = "".join(f".{name}{{{rule}}}" for rule, name in classes.items())
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(description)}</desc>",
        f"<style>text{{font:13px {_FONTS};white-space:pre}}{rules}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{ground}"/>',
        f'<g transform="translate({_MARGIN} {_MARGIN})">',
        *(f'<path fill="{colour}" d="{"".join(paths)}"/>' for colour, paths in boxes),
        *texts,
        "</g>",
        "</svg>\n",
    ])  # fmt: skip


def rows(svg: str) -> dict[int, list[tuple[int, str]]]:
    """Return what is written in a picture of ours: each row's texts, with the cell they begin at."""
    found: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for text in ET.fromstring(svg).iter(f"{_NAMESPACE}text"):
        found[int(text.attrib["y"]) // CELL[1]].append((int(text.attrib["x"]) // CELL[0], text.text or ""))
    return dict(found)


def description(svg: str) -> str:
    """Return the description that a picture was made with."""
    return ET.fromstring(svg).findtext(f"{_NAMESPACE}desc") or ""


def _drawn(strips: Sequence[Strip], common: str) -> tuple[list[tuple[str, list[str]]], dict[str, str], list[str]]:
    """Return rectangles with their colour, first the grounds that aren't the `common` one; classes by rule; texts."""
    grounds: dict[str, list[str]] = defaultdict(list)
    blocks: dict[str, list[str]] = defaultdict(list)
    classes: dict[str, str] = {}
    texts: list[str] = []
    for y, strip in enumerate(strips):
        x = 0
        for segment in strip:
            style = segment.style or Style()
            colour, ground = _colours(style)
            width = cell_len(segment.text)
            if ground != common:
                grounds[ground].append(_box(x * CELL[0], y * CELL[1], width * CELL[0], CELL[1]))
            name = classes.setdefault(_rule(style, colour), f"s{len(classes)}")
            for at, word in _words(segment.text):
                if (shape := _shape(word)) is None:
                    texts.append(_text(x + at, y, word, name))
                    continue
                left, top, across, down = shape
                for cell in range(len(word)):
                    blocks[colour].append(_box((x + at + cell) * CELL[0] + left, y * CELL[1] + top, across, down))
            x += width
    return [*grounds.items(), *blocks.items()], classes, texts


def _words(text: str) -> Iterable[tuple[int, str]]:
    """Return words with single spaces between them, and runs of one block or rule, each with the cell it begins at."""
    word, at, x = "", 0, 0
    for character, run in itertools.groupby(text.replace("\xa0", " ")):
        same = "".join(run)
        shape = _shape(character)
        if shape is not None or (character == " " and len(same) > 1):
            if word.strip():
                yield at, word
            if shape is not None:
                yield x, same
            word = ""
        elif word or character != " ":
            at = at if word else x
            word += same
        x += cell_len(same)
    if word.strip():
        yield at, word


def _shape(word: str) -> tuple[int, int, int, int] | None:
    """Return the rectangle that stands for a character in its cell; None: it is to be written."""
    character = word[0]
    if character in _RULES:
        return _RULES[character]
    if (eighths := _BELOW.find(character)) > 0:
        down = round(CELL[1] * eighths / 8)
        return 0, CELL[1] - down, CELL[0], down
    if (eighths := _BESIDE.find(character)) > 0:
        return 0, 0, eighths, CELL[1]
    return None


def _box(x: int, y: int, width: int, height: int) -> str:
    return f"M{x} {y}h{width}v{height}h-{width}z"


def _text(x: int, y: int, text: str, name: str) -> str:
    text = text.rstrip()
    length = cell_len(text) * CELL[0]
    place = f'x="{x * CELL[0]}" y="{y * CELL[1] + 14}" textLength="{length}"'
    return f'<text {place} lengthAdjust="spacingAndGlyphs" class="{name}">{escape(text)}</text>'


def _colours(style: Style) -> tuple[str, str]:
    """Return the colours of text and ground."""
    colours = [
        (style.color.get_truecolor(SVG_EXPORT_THEME) if style.color else SVG_EXPORT_THEME.foreground_color).hex,
        (style.bgcolor.get_truecolor(SVG_EXPORT_THEME) if style.bgcolor else SVG_EXPORT_THEME.background_color).hex,
    ]
    return (colours[1], colours[0]) if style.reverse else (colours[0], colours[1])


def _rule(style: Style, colour: str) -> str:
    """Return a style as a rule."""
    rules = [f"fill:{colour}"]
    rules += ["font-weight:bold"] * bool(style.bold) + ["font-style:italic"] * bool(style.italic)
    rules += ["opacity:.6"] * bool(style.dim)
    if style.underline or style.strike:
        rules.append(f"text-decoration:{'line-through' if style.strike else 'underline'}")
    return ";".join(rules)
