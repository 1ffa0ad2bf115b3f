"""The one place where text that is not ours becomes content of a widget: inert, whatever it holds.

Which characters are drawn as pictures is said in `tinychat.pictures`. Nothing here, and nothing that calls it, parses
markup.
"""

from __future__ import annotations

from textual.content import Content

from tinychat.pictures import PICTURES as PICTURES
from tinychat.pictures import one_line as one_line
from tinychat.pictures import pictured as pictured
from tinychat.pictures import visible as visible


def inert(text: str) -> Content:
    """Return `text` as content that a widget draws as it is: no markup, no control characters."""
    return Content(pictured(text))
