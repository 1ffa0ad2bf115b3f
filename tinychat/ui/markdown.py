"""A finished reply as Markdown, drawn into lines of segments.

Textual's Markdown widget mounts a widget a block; two hundred replies make one more message take most of a second.
Rich's renderer gives lines, and a turn stays one widget. Its parser is told to style and never to eat: HTML, entities,
escapes, images and reference definitions stay as the model wrote them, a line break stays a line break, and no link can
be followed or run anything.

Imported late: the parser and the highlighter take 100 ms, and the first reply is some seconds away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments.token import Comment, Error, Keyword, Name, Number, Operator, String, _TokenType
from rich import box
from rich import markdown as rich_markdown
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax, SyntaxTheme
from rich.table import Table
from rich.theme import Theme

from tinychat.ui.foreign_text import pictured

StyleOf = Callable[[str], Style]
"""Gives the style of a part by its name: text, heading, strong, code, quiet, and the parts of a code block."""

_PARSER = (
    MarkdownIt("commonmark")
    .enable(["table", "strikethrough"])
    .disable(["html_block", "html_inline", "entity", "escape", "image", "reference", "autolink"])
)


def markdown_lines(text: str, width: int, style_of: StyleOf) -> list[list[Segment]]:
    """Render `text` at `width` cells; no line is wider, and no segment holds a control character or a link."""
    console = Console(
        width=width, color_system="truecolor", force_terminal=True, legacy_windows=False, theme=_theme(style_of)
    )
    document = _Markdown(pictured(text).replace("\t", "    "), style_of)
    lines = console.render_lines(document, console.options.update(height=None), style=style_of("text"), pad=False)
    while lines and not "".join(segment.text for segment in lines[-1]).strip():
        lines.pop()
    while lines and not "".join(segment.text for segment in lines[0]):
        del lines[0]  # what Rich puts before a list, a quote or code, also where nothing stands above
    # Once more, after the parser: whatever it may decode or insert is drawn safely too.
    return [[Segment(pictured(segment.text), segment.style) for segment in line] for line in lines] or [[]]


def _theme(style_of: StyleOf) -> Theme:
    """Rich's names for the parts of a document, in the styles of the screen."""
    names = {
        "heading": ["h1", "h2", "h3", "h4", "h5", "h6"],
        "strong": ["strong"],
        "code": ["code"],
        "quiet": ["hr", "link_url", "block_quote", "item.bullet", "item.number", "table.border"],
        "text": ["paragraph", "text", "list", "item", "code_block", "kbd"],
    }
    styles = {f"markdown.{part}": style_of(name) for name, parts in names.items() for part in parts}
    styles |= {
        "markdown.em": Style(italic=True),
        "markdown.s": Style(strike=True),
        "markdown.link": Style(underline=True),
        "markdown.table.header": style_of("strong"),
    }
    return Theme(styles)


class _Table(rich_markdown.TableElement):
    """A table without blank lines above and below."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            assert isinstance(table, Table)
            table.box, table.show_edge = box.SIMPLE_HEAD, False
            yield table


class _ListItem(rich_markdown.ListItem):
    """An item that keeps the number it was given, `1.` or `1)`."""

    numeral = ""

    @classmethod
    def create(cls, markdown: rich_markdown.Markdown, token: Token) -> _ListItem:  # noqa: ARG003
        item = cls()
        item.numeral = token.info + token.markup
        return item

    def render_number(self, console: Console, options: ConsoleOptions, number: int, last_number: int) -> RenderResult:
        style = console.get_style("markdown.item.number")
        indent = max(len(f" {last_number - 1}. "), len(self.numeral) + 1)  # Rich counts one too far
        head = Segment(self.numeral.rjust(indent - 1) + " ", style)
        inner = options.update(width=options.max_width - indent)
        for line in console.render_lines(self.elements, inner, style=self.style):
            yield head
            yield from line
            yield Segment("\n")
            head = Segment(" " * indent, style)


class _Heading(rich_markdown.Heading):
    """A heading, on the left whatever its level."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.text.copy()
        text.justify = "left"
        yield text


class _CodeBlock(rich_markdown.CodeBlock):
    """A code block in the colours of the screen's theme."""

    @classmethod
    def create(cls, markdown: rich_markdown.Markdown, token: Token) -> _CodeBlock:
        assert isinstance(markdown, _Markdown)
        block = cls((token.info or "").strip().partition(" ")[0] or "text", "")
        block.style_of = markdown.style_of
        return block

    style_of: StyleOf

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip("\n")
        yield Syntax(code, self.lexer_name, theme=_CodeTheme(self.style_of), word_wrap=True, padding=(0, 1))


class _CodeTheme(SyntaxTheme):
    """Pygments' kinds of tokens in five of our styles."""

    def __init__(self, style_of: StyleOf) -> None:
        self._style_of = style_of

    def get_style_for_token(self, token_type: _TokenType) -> Style:
        for kind, name in _CODE:
            if token_type in kind:
                return self._style_of(name)
        return self._style_of("block")

    def get_background_style(self) -> Style:
        return self._style_of("block")


_CODE = (
    (Comment, "comment"),
    (Keyword, "keyword"),
    (Operator.Word, "keyword"),
    (String, "string"),
    (Number, "number"),
    (Name.Function, "function"),
    (Name.Class, "function"),
    (Name.Decorator, "function"),
    (Error, "block"),
)


class _Markdown(rich_markdown.Markdown):
    """Rich's renderer on our parser's tokens."""

    elements = {
        **rich_markdown.Markdown.elements,
        "heading_open": _Heading,
        "list_item_open": _ListItem,
        "table_open": _Table,
        "fence": _CodeBlock,
        "code_block": _CodeBlock,
    }

    def __init__(self, text: str, style_of: StyleOf) -> None:
        super().__init__("", hyperlinks=False)
        self.style_of = style_of
        self.parsed = list(_with_line_breaks(_PARSER.parse(text)))


def _with_line_breaks(tokens: list[Token]) -> Iterator[Token]:
    """Make every line break inside a paragraph a hard one: models mean those they write."""
    for token in tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"
        yield token
