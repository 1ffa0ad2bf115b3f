"""`tinychat run`: the chat where a person sits at both ends, else one reply."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tinychat.catalog import ModelCard
from tinychat.cli import options
from tinychat.cli.files import card_of
from tinychat.cli.piped import arguments_text, piped_text
from tinychat.errors import TinychatError, UsageError
from tinychat.protocol import Limits, LoadModel

if TYPE_CHECKING:
    from tinychat.chats.store import Saved


def run(
    words: typer.Context,
    model: Annotated[
        str | None, typer.Argument(parser=options.plain, metavar="MODEL", help="As in `tinychat list`, or any other.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Argument(parser=options.plain, metavar="PROMPT", help="Say this, print the reply, leave.")
    ] = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    frequency_penalty: options.FrequencyPenalty = None,
    presence_penalty: options.PresencePenalty = None,
    seed: options.Seed = None,
    speculate: options.Speculate = None,
    draft: options.Draft = None,
    order: Annotated[
        str | None,
        typer.Option(
            "--order",
            parser=options.choice("--order", ("transformers", "llama.cpp")),
            metavar="transformers|llama.cpp",
            help="Whose order of the filters: temperature first, or last.",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            "-n",
            parser=options.integer("--max-tokens", 1, 2**31 - 1),
            metavar="N",
            help="End a reply after N tokens; default: none, 256 for base models.",
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            "--stop", parser=options.plain, metavar="TEXT", help="End a reply before this text; may be repeated."
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", parser=options.plain, metavar="TEXT", help="The system prompt.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="No template: continue the text as it is.")] = False,
    think: Annotated[
        bool | None, typer.Option("--think/--no-think", help="Whether a thinking model thinks.", show_default=False)
    ] = None,
    dtype: options.Dtype = "auto",
    head: options.Head = "auto",
    cache_dtype: options.CacheDtype = "auto",
    prefill_copy: options.PrefillCopy = "auto",
    context: Annotated[
        int | None,
        typer.Option(
            "--context",
            parser=options.integer("--context", 2, 2**31 - 1),
            metavar="N",
            help="Tokens the cache holds; default: by the model and the free memory.",
        ),
    ] = None,
    threads: options.Threads = None,
    beside: Annotated[
        str | None,
        typer.Option(
            "--beside",
            parser=options.plain,
            metavar='"MODEL OPTIONS"',
            help='A second model, asked the same; what isn\'t named is as in the first: --beside "--dtype fp32".',
        ),
    ] = None,
    theme: options.Theme = None,
    view: options.View = None,
    no_mouse: options.NoMouse = False,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace",
            parser=options.plain,
            metavar="FILE",
            help="Write what happened at each token to FILE, as JSON, an object a line; looking takes time.",
        ),
    ] = None,
    record: Annotated[
        str | None,
        typer.Option(
            "--record",
            parser=options.plain,
            metavar="FILE",
            help="Keep all that passes in FILE, which must be new; `tinychat replay FILE` plays it.",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the last chat.")] = False,
    session: Annotated[
        int | None,
        typer.Option(
            "--session",
            parser=options.integer("--session", 1, 2**63 - 1),
            metavar="ID",
            help="Go on with this chat; `tinychat sessions` lists them.",
        ),
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Keep nothing of this chat.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One reply as JSON, an object a line: ready, each token, done.")
    ] = False,
) -> None:
    """Chat with a model, or print one reply.

    Opens the chat; with a PROMPT or text from a pipe it prints the reply and leaves.

    Text from a pipe has to be UTF-8; its line ends become LF, and the last of them is left out. Both: the prompt, a
    blank line, the text. A prompt that begins with a dash comes after `--`. Chats are kept, single replies aren't; one
    that is gone on with is talked to by its own model where none is named.
    """
    if raw and system:
        raise UsageError("--system has no place in --raw, which continues the text as it is.")
    if raw and think is not None:
        raise UsageError("--think and --no-think have no place in --raw, which uses no template.")
    on_screen = prompt is None and sys.stdin.isatty() and sys.stdout.isatty() and not as_json
    saved = _resumed(resume, session, screen=on_screen)
    card = card_of(saved.session.model if saved is not None and model is None else model)
    flags = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "seed": seed,
        "order": order,
        "speculate": options.DRAFTED if speculate is None and draft is not None else speculate,
    }
    load = LoadModel(
        load_id=1,
        card=card,
        dtype=dtype,
        head=head,
        cache_dtype=cache_dtype,
        prefill_copy=prefill_copy,
        context=context,
        threads=threads,
        draft=None if draft is None else card_of(draft),
        sampler=tuple((name, value) for name, value in flags.items() if value is not None),
    )
    try:
        limits = Limits(max_tokens, tuple(arguments_text("--stop", text) for text in stop or ()))
    except ValueError as error:
        raise UsageError(str(error)) from None
    system = arguments_text("--system", system or "")
    if beside is not None:
        for flag, value in (("--view", view), ("--trace", trace), ("--record", record)):
            if value is not None:
                raise UsageError(f"{flag} has no place beside --beside, which shows two models and no views.")
        if saved is not None:
            raise UsageError("--resume and --session have no place beside --beside, whose chats aren't kept.")
        from tinychat.cli.beside import open_both, print_both
        from tinychat.cli.second import second_model

        loads = load, second_model(beside, words, load)
        if on_screen:
            open_both(loads, system=system, limits=limits, think=think, raw=raw, theme=theme, mouse=not no_mouse)
        else:
            text = _said(card, prompt, raw=raw)
            print_both(loads, text, system=system, limits=limits, think=think, raw=raw, as_json=as_json)
        return

    if on_screen:
        from tinychat.cli.screen import open_chat

        open_chat(
            load,
            system=system,
            limits=limits,
            think=think,
            raw=raw,
            theme=theme,
            view=view,
            mouse=not no_mouse,
            trace=trace,
            record=record,
            saved=saved,
            private=private,
        )
        return
    from tinychat.cli.reply import print_reply

    text = _said(card, prompt, raw=raw)
    print_reply(
        load,
        text,
        system=system,
        limits=limits,
        think=think,
        raw=raw,
        as_json=as_json,
        trace=trace,
        record=record,
    )


def _resumed(last: bool, session_id: int | None, *, screen: bool) -> Saved | None:
    """Return the chat to go on with, None to begin one.

    Raises:
        UsageError: The words contradict each other, or no chat is going to be opened.
        TinychatError: There is no such chat.
    """
    if not last and session_id is None:
        return None
    flag = "--resume" if last else "--session"
    if last and session_id is not None:
        raise UsageError("--resume goes on with the last chat, --session with the one it names.", "Give one of them.")
    if not screen:
        raise UsageError(f"{flag} opens the chat, which needs a terminal on both sides, no PROMPT and no --json.")
    from tinychat.chats.store import Store, default_path

    if not default_path().exists():
        raise TinychatError("There is no chat to go on with: none was kept yet.", "`tinychat run` begins one.")
    with Store() as store:
        session_id = store.latest() if session_id is None else session_id
        if session_id is None:
            raise TinychatError("There is no chat to go on with.", "`tinychat run` begins one.")
        return store.read(session_id)


def _said(card: ModelCard, prompt: str | None, *, raw: bool) -> str:
    """Return what the model shall answer: the prompt, the text from the pipe, or both.

    Raises:
        UsageError: There is neither.
        TinychatError: The pipe's text is no UTF-8.
    """
    example = f'`tinychat run {card.name} "PROMPT"`'
    if prompt is None and sys.stdin.isatty():
        raise UsageError("There is no prompt, and without a terminal on both sides no chat.", f"Give one: {example}.")
    piped = piped_text()
    if prompt is not None and piped:
        text = f"{arguments_text('PROMPT', prompt)}\n\n{piped}"
    else:
        text = piped if prompt is None else arguments_text("PROMPT", prompt)
    if not (text.strip() or (raw and prompt is not None)):
        raise UsageError("The prompt is empty.", f"Say something: {example}.")
    return text
