"""Chat templates: rendered as transformers renders them, kept in a sandbox, and named by line where they fail."""

from __future__ import annotations

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import families
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from tinychat.errors import CheckpointError, TemplateError
from tinychat.text import template_sandbox
from tinychat.text.chat_template import TRANSCRIPT, ChatTemplate

USER = [{"role": "user", "content": "hi"}]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

HELPERS = """\
{%- macro say(message) -%}
    [{{ message.role | upper }}: {{ message['content'] | trim }}]
{%- endmacro %}
{% set ns = namespace(count=0, text='') %}
{% for message in messages %}
  {% if message.role == 'skip' %}{% continue %}{% endif %}
  {% if loop.index > 5 %}{% break %}{% endif %}
  {% generation %}{{ say(message) }}{% endgeneration %}
  {% set ns.count = ns.count + 1 %}{% set ns.text = ns.text ~ loop.index0 ~ '/' ~ loop.length ~ ' ' %}
{% endfor %}
{{ {'é': [1, 2], 'b': '<a & "b">'} | tojson }} {{ [1, {'x': none}] | tojson(indent=2) }}
{{ messages[::-1] | map(attribute='role') | join(',') }} {{ range(3) | list }} {{ '%s-%s' % (1, 'x') }}
{{ '{}!'.format(2) }}
{{ ns.count }} {{ ns.text }} {{ missing }} {{ bos_token }} {{ tools is none }} {{ '-' * 3 }} {{ 2 ** 3 }}
{% filter upper %}done{% endfilter %}

"""


@pytest.mark.parametrize(
    "source",
    [*(getattr(families, name) for name in ("CHATML", "LLAMA3", "ZEPHYR", "QWEN3", "PHI3")), TRANSCRIPT, HELPERS],
)
@given(
    messages=st.lists(
        st.builds(
            lambda role, content: {"role": role, "content": content},
            st.sampled_from(["system", "user", "assistant", "skip"]),
            st.text(max_size=10) | st.sampled_from([" x ", "\n", "<think>a</think>b"]),
        ),
        min_size=1,
        max_size=7,
    ),
    prompt=st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_renders_what_transformers_renders(source: str, messages: list[dict[str, Any]], prompt: bool) -> None:
    """White space around blocks, loop controls, tojson's escapes, helpers that templates rely on."""
    (expected,), _ = render_jinja_template([messages], chat_template=source, add_generation_prompt=prompt, **TOKENS)
    assert ChatTemplate(source, TOKENS).render(messages, prompt) == expected


def test_variables_reach_the_template() -> None:
    """--no-think that changes nothing."""
    template = ChatTemplate(families.QWEN3)
    assert template.render(USER, enable_thinking=False).endswith("<think>\n\n</think>\n\n")
    assert template.render(USER, enable_thinking=True).endswith("assistant\n")


def test_the_transcript_of_base_models() -> None:
    """A base model that gets no format at all, or loses the space its reply began with (C1, T6)."""
    template = ChatTemplate.transcript()
    said = [("system", "Be kind."), ("user", "Hi"), ("assistant", " Hello."), ("user", "x"), ("assistant", "typed")]
    text = template.render([{"role": role, "content": content} for role, content in said])
    assert text == "Be kind.\n\nUser: Hi\nAssistant: Hello.\nUser: x\nAssistant: typed\nAssistant:"
    assert template.render([*USER, {"role": "assistant", "content": ""}], False) == "User: hi\nAssistant:\n"
    assert template.stops == ("\nUser:", "\nAssistant:")
    assert template.thinking is None


def test_a_refusal_quotes_the_template() -> None:
    """ "Template error" without the line, or the reason, that tells what to do."""
    with pytest.raises(TemplateError) as raised:
        ChatTemplate("a\nb\n  {{ raise_exception('System role not supported') }}").render(USER)
    assert "System role not supported" in raised.value.summary
    assert "line 3: {{ raise_exception(" in raised.value.summary
    assert raised.value.remedy


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("a\n{% if %}", "line 2: {% if %}"),
        ("{% for %}", "line 1"),
        ("{{ messages[0].no.such }}", "line 1: {{ messages[0].no.such }}"),
        ("\n\n{{ none + 1 }}", "line 3: {{ none + 1 }}"),
        ("{% macro f() %}\n{{ 1 / 0 }}\n{% endmacro %}\n{{ f() }}", "line 2: {{ 1 / 0 }}"),
        ("{% for m in messages %}\n{{ m.content.no() }}{% endfor %}", "line 2"),
        ("{{ '" + "x" * 500 + "' + 1 }}", "line 1: {{ 'xxx"),
    ],
)
def test_a_template_that_fails_is_named_by_its_line(source: str, line: str) -> None:
    """A traceback of Jinja's, or a screenful of template."""
    with pytest.raises(TemplateError) as raised:
        ChatTemplate(source).render(USER)
    assert line in raised.value.summary
    assert len(raised.value.summary) < 400


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ raise_exception.__globals__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ self._TemplateReference__context }}",
        "{{ ().__class__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ messages | map(attribute='__class__') | list }}",
        "{{ messages | map(attribute='__class__') | map(attribute='__mro__') | list }}",
        "{% include '/etc/passwd' %}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns.__class__.__mro__ }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(source: str) -> None:
    """A model file that runs code on the machine of whoever opens it. What is forbidden is undefined: empty when shown,
    an error when used."""
    try:
        shown = ChatTemplate(source).render(USER)
    except TemplateError:
        return
    assert shown in ("", "[Undefined]")


def test_messages_are_copied() -> None:
    """A template that changes the conversation it is shown."""
    messages = [{"role": "user", "content": "hi"}]
    ChatTemplate("{% set _ = messages %}").render(messages)
    assert messages == USER


HOSTILE = [
    "{% for i in range(10**9) %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{{ 'a' * 10**10 }}",
    "{{ 10**10 * 'a' }}",
    "{{ [1] * 10**10 }}",
    "{{ 10**10**10 }}",
    "{% set ns = namespace(x='aaaa') %}{% for i in range(200) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='aaaa') %}{% for i in range(200) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='aa') %}{% for i in range(99) %}{% set ns.x = ns.x|replace('a', 'aaaa') %}{% endfor %}",
    "{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = ns.x + ['a' * 1000000] %}{% endfor %}",
    "{{ 'a' | center(10**10) }}",
    "{{ 'a' | indent(width=10**10) }}",
    "{{ 'a'.center(10**10) }}",
    "{{ 'a'.ljust(width=10**10) }}",
    "{{ '{:99999999999}'.format(1) }}",
    "{{ '%99999999999d' % 1 }}",
    "{{ lipsum(99999999) }}",
    "{{ " + "(" * 50_000 + ")" * 50_000 + " }}",
]


@pytest.mark.parametrize("source", HOSTILE, ids=[source[:40] for source in HOSTILE])
def test_a_hostile_template_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model file that hangs the program, or fills the memory of the machine."""
    monkeypatch.setattr(template_sandbox, "SECONDS", 0.3)
    start = time.perf_counter()
    with pytest.raises(TemplateError):
        ChatTemplate(source).render(USER)
    assert time.perf_counter() - start < 5


def test_a_template_that_was_stopped_can_be_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time and size counted over all renderings: a long chat is refused in the end."""
    template = ChatTemplate("{% if messages|length > 1 %}{{ 'a' * 10**10 }}{% endif %}{{ 'a' * 9000000 }}")
    with pytest.raises(TemplateError):
        template.render(USER * 2)
    for _ in range(30):
        assert len(template.render(USER)) == 9_000_000


def test_the_clock_can_be_held() -> None:
    """Two renderings of one prompt that differ, because a minute has passed between them."""
    template = ChatTemplate("{{ strftime_now('%Y-%m-%d') }}")
    assert template.render(USER, now=datetime(2024, 2, 29)) == "2024-02-29"
    assert template.render(USER) == datetime.now().strftime("%Y-%m-%d")


@pytest.mark.parametrize(
    ("source", "opening", "switch"),
    [
        (families.QWEN3, "<think>", True),
        ("{{ message.content.split('</think>')[-1] }}", "<think>", False),
        ("[THINK]{{ x }}[/THINK]", "[THINK]", False),
        ("{% if enable_thinking %}{% endif %}", "<think>", True),
    ],
)
def test_templates_that_know_of_thinking(source: str, opening: str, switch: bool) -> None:
    """Thinking shown as the answer."""
    thinking = ChatTemplate(source).thinking
    assert thinking is not None
    assert (thinking.markers.open, thinking.switch) == (opening, switch)


def test_templates_that_do_not(tmp_path: Path) -> None:
    """A fold for a model that never thinks."""
    assert ChatTemplate(families.CHATML).thinking is None


def test_where_a_folder_keeps_its_template(tmp_path: Path) -> None:
    """Today's separate file, yesterday's setting, and lists of named templates."""
    assert ChatTemplate.from_folder(tmp_path, {}) is None

    def write(name: str, content: Any) -> str:
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        template = ChatTemplate.from_folder(tmp_path, {"eos_token": "</s>"})
        assert template is not None
        return template.render(USER)

    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "list{{ eos_token }}"}]
    assert write("tokenizer_config.json", {"chat_template": "setting{{ eos_token }}"}) == "setting</s>"
    assert write("tokenizer_config.json", {"chat_template": named}) == "list</s>"
    assert write("chat_template.json", {"chat_template": "json"}) == "json"
    assert write("chat_template.jinja", "file é") == "file é"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja"):
        ChatTemplate.from_folder(tmp_path, {})


def test_where_a_gguf_file_keeps_its_template() -> None:
    """GGUF: one key; older files have named ones."""
    assert ChatTemplate.from_gguf({}, {}) is None
    for key in ("tokenizer.chat_template", "tokenizer.chat_template.default"):
        template = ChatTemplate.from_gguf({key: "{{ bos_token }}x"}, TOKENS)
        assert template is not None
        assert template.render(USER) == "<s>x"
