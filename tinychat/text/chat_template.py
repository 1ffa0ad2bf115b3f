"""Chat templates: Jinja programs that write a conversation the way a model was trained to read it.

What a template may use is what transformers gives it (https://huggingface.co/docs/transformers/chat_templating): loop
controls, `raise_exception`, `strftime_now`, a `tojson` that leaves HTML alone, and the `generation` tag.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from traceback import walk_tb
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from tinychat.errors import CheckpointError, TemplateError
from tinychat.text.template_sandbox import TemplateSandbox
from tinychat.text.thinking import MARKERS, Markers
from tinychat.text.tokenizer_folder import read_json

TRANSCRIPT: Final = """\
{%- for message in messages -%}
    {%- if message.role == 'system' -%}
        {{- message.content + '\\n\\n' -}}
    {%- elif message.role == 'assistant' -%}
        {{- 'Assistant:' + ('' if message.content[:1] | trim == '' else ' ') + message.content + '\\n' -}}
    {%- else -%}
        {{- 'User: ' + message.content + '\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ 'Assistant:' }}{% endif -%}
"""
"""How a conversation is written for a base model, which continues it. The space that a reply begins with is its own."""
TRANSCRIPT_STOPS: Final = ("\nUser:", "\nAssistant:")
"""Where a reply in a transcript ends: the model begins to speak for someone."""

_QUOTED: Final = 120
"""Characters of a template's line that an error quotes."""
_FILENAME: Final = "<template>"
"""What Jinja calls the file of a template that came as a string."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """What a template knows of thinking."""

    markers: Markers
    switch: bool
    """Whether `enable_thinking` turns it on and off."""


class ChatTemplate:
    """A compiled template."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        *,
        name: str = "the chat template",
        stops: Sequence[str] = (),
    ) -> None:
        """Compile it.

        Args:
            source: The Jinja program.
            special_tokens: Texts of control tokens by name (bos_token, ...), as `Tokenizer.special_tokens` has them.
            name: What error sentences call it.
            stops: Stop strings that its replies need.

        Raises:
            TemplateError: It can't be compiled; the sentence has the line.
        """
        self.source = source
        self.name = name
        self.stops = tuple(stops)
        self._special_tokens = dict(special_tokens or {})
        self._sandbox = TemplateSandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag]
        )
        self._sandbox.filters["tojson"] = _tojson
        self._sandbox.globals |= {"raise_exception": _raise_exception, "strftime_now": self._strftime_now}
        self._now = datetime.now()
        try:
            self._template = self._sandbox.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise self._error(f"can't be compiled: {error.message}", error.lineno) from None
        except Exception as error:  # Python's own compiler has limits, too
            raise self._error(f"can't be compiled: {error}", None) from None

    @classmethod
    def from_folder(cls, folder: Path, special_tokens: Mapping[str, str]) -> ChatTemplate | None:
        """Read the template of a model folder; None where there is none, which makes it a base model.

        Raises:
            CheckpointError: A file can't be read.
            TemplateError: The template can't be compiled.
        """
        file = folder / "chat_template.jinja"
        if file.exists():
            try:
                return cls(file.read_text(encoding="utf-8-sig"), special_tokens, name=str(file))
            except (OSError, UnicodeDecodeError) as error:
                raise CheckpointError(f"{file} can't be read: {error}.", "Fetch it again.") from None
        for file in (folder / "chat_template.json", folder / "tokenizer_config.json"):
            source = _default(read_json(file).get("chat_template"))
            if source is not None:
                return cls(source, special_tokens, name=f"chat_template in {file}")
        return None

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], special_tokens: Mapping[str, str]) -> ChatTemplate | None:
        """Read the template of a GGUF file; None where there is none, which makes it a base model.

        Raises:
            TemplateError: The template can't be compiled.
        """
        source = metadata.get("tokenizer.chat_template", metadata.get("tokenizer.chat_template.default"))
        if not isinstance(source, str):
            return None
        return cls(source, special_tokens, name="tokenizer.chat_template in the GGUF file")

    @classmethod
    def transcript(cls) -> ChatTemplate:
        """Return the template for base models."""
        return cls(TRANSCRIPT, name="the transcript", stops=TRANSCRIPT_STOPS)

    @property
    def thinking(self) -> Thinking | None:
        """What it knows of thinking; None for models that don't think."""
        switch = "enable_thinking" in self.source
        known = [markers for markers in MARKERS if markers.close in self.source]
        return Thinking(known[0] if known else MARKERS[0], switch) if known or switch else None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        now: datetime | None = None,
        **variables: Any,
    ) -> str:
        """Return the conversation as the model reads it.

        Args:
            messages: Dictionaries with role and content, of a thinking model also reasoning_content.
            add_generation_prompt: Whether the reply's beginning is written, too.
            now: The time that `strftime_now` tells; None is the real one.
            **variables: More that the template may ask for, such as enable_thinking.

        Raises:
            TemplateError: It refuses the conversation, or fails; the sentence has the line.
        """
        self._sandbox.start()
        self._now = now or datetime.now()
        known = {**self._special_tokens, "tools": None, "documents": None, **variables}
        try:
            return self._template.render(
                messages=[dict(message) for message in messages], add_generation_prompt=add_generation_prompt, **known
            )
        except _Refused as refusal:
            raise self._error(f'refuses the conversation: "{refusal.message}"', _line(refusal)) from None
        except Exception as error:  # a template can raise whatever Python can
            raise self._error(f"fails: {error}", _line(error)) from None

    def _strftime_now(self, form: str) -> str:
        return self._now.strftime(form)

    def _error(self, what: str, line: int | None) -> TemplateError:
        name = self.name[:1].upper() + self.name[1:] if self.name.startswith("the ") else self.name
        lines = self.source.splitlines()
        if line is None or not 0 < line <= len(lines):
            return TemplateError(f"{name} {what}.", _REMEDY)
        quoted = lines[line - 1].strip()
        quoted = quoted if len(quoted) <= _QUOTED else f"{quoted[:_QUOTED]}…"
        return TemplateError(f"{name} {what}, in line {line}: {quoted}", _REMEDY)


_REMEDY: Final = "Another template can be tried with `tinychat prompt MODEL --template FILE`."


class _Refused(jinja2.TemplateError):
    """The template raised an exception of its own."""


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks replies for training; here it just holds them."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Return what stands between the tags; what is set there isn't seen outside."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _raise_exception(message: str) -> NoReturn:
    raise _Refused(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _default(template: object) -> str | None:
    """Return the template in a setting: a string, or a list of named ones of which the default is the one for chats."""
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _line(error: BaseException) -> int | None:
    """Return the line of the template that was running, from the traceback that Jinja rewrites."""
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == _FILENAME]
    return lines[-1] if lines else None
