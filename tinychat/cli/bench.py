"""`tinychat bench`: how fast a model is on this machine, and how near that is to what the memory allows."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, cast

import typer

from tinychat.cli import options
from tinychat.cli.console import Notices, Results
from tinychat.cli.files import card_of
from tinychat.cli.headless import Headless
from tinychat.cli.losses import as_keys, in_words, measure_loss
from tinychat.protocol import Detail, LoadModel
from tinychat.ui import figures


def bench(
    model: options.Model,
    prompt_tokens: Annotated[
        int,
        typer.Option(
            "--prompt-tokens", parser=options.integer("--prompt-tokens", 1, 2**20), metavar="N", help="Of the prompt."
        ),
    ] = 512,
    new_tokens: Annotated[
        int,
        typer.Option(
            "--new-tokens", parser=options.integer("--new-tokens", 2, 2**20), metavar="N", help="Of the reply."
        ),
    ] = 128,
    runs: Annotated[
        int, typer.Option("--runs", parser=options.integer("--runs", 1, 1000), metavar="N", help="Medians are of N.")
    ] = 3,
    dtype: options.Dtype = "auto",
    head: options.Head = "auto",
    cache_dtype: options.CacheDtype = "auto",
    prefill_copy: options.PrefillCopy = "auto",
    threads: options.Threads = None,
    detail: Annotated[
        str,
        typer.Option(
            "--detail",
            parser=options.choice("--detail", ("none", "basic", "full")),
            metavar="none|basic|full",
            help="What each token reports.",
        ),
    ] = "none",
    speculate: options.Speculate = None,
    loss: Annotated[
        bool, typer.Option("--loss", help="Measure, too, what the form of the weights loses, and keep it.")
    ] = False,
    draft: options.Draft = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure load, prefill and decode.

    The prompt is the ids (7919 i mod 40000) + 100, modulo the vocabulary's size. Every run begins with an empty cache,
    is greedy, and passes over end ids.
    """
    notices = Notices()
    ahead = (options.DRAFTED if draft else 0) if speculate is None else speculate
    with Headless() as headless:
        second = None if draft is None else card_of(draft)
        load = LoadModel(
            load_id=1,
            card=card_of(model),
            dtype=dtype,
            head=head,
            cache_dtype=cache_dtype,
            prefill_copy=prefill_copy,
            threads=threads,
            draft=second,
        )
        info = headless.load(load).info
        notices.status(f"{info.name}: measuring {runs} runs of {prompt_tokens} and {new_tokens} tokens")
        from tinychat.engine.bench import Measured, measure

        measured: Measured = headless.engine.call(
            lambda session: measure(
                session,
                prompt_tokens=prompt_tokens,
                new_tokens=new_tokens,
                runs=runs,
                detail=cast("Detail", detail),
                speculate=ahead,
            )
        )
        lost = None
        if loss:
            notices.status(f"{info.name}: reading a text with the weights of the file in fp32, and with these")
            lost = measure_loss(headless, notices)
    notices.clear()
    kernel = f"{info.kernel}+{'draft' if draft else 'lookup'}" if ahead else info.kernel
    found: dict[str, Any] = {
        "model": info.name,
        "arch": info.architecture,
        "dtype": info.dtype,
        "head_dtype": info.head_dtype,
        "threads": info.threads,
        "kernel": kernel,
        "load_s": info.load_seconds,
        "ttft_s": measured.first_token_seconds,
        "prefill_tok_s": measured.prefill_rate,
        "decode_tok_s": measured.decode_rate,
        "weights_bytes": info.weights_bytes,
        "rss_bytes": measured.process_bytes,
        "read_gb_s": measured.read_rate / 1e9,
        "decode_limit_tok_s": measured.decode_limit,
        "decode_of_limit": measured.decode_rate / measured.decode_limit,
        "cache_blocks": asdict(measured.blocks),
    }
    if lost is not None:
        found |= as_keys(lost)
    results = Results()
    if as_json:
        results.json(found)
        return
    blocks = measured.blocks
    taken = f"{blocks.used:,} used, {blocks.shared:,} shared, {blocks.free:,} free"
    shape = f"{prompt_tokens} prompt tokens, {new_tokens} new ones, detail {detail}, {runs} cold runs (medians)"
    for label, value in (
        ("model", f"{info.name} ({info.architecture}, {figures.parameters(info.parameters)})"),
        ("weights", f"{info.dtype_reason}; {figures.memory(info.weights_bytes)}"),
        *((("copy", info.copy_reason),) if info.copy_reason else ()),
        ("path", f"{kernel}, {info.threads} thread{'s' * (info.threads != 1)}"),
        ("runs", shape),
        ("load", f"{figures.duration(info.load_seconds)} (without importing torch and compiling kernels)"),
        ("first token", figures.duration(measured.first_token_seconds)),
        ("prefill", figures.rate(measured.prefill_rate)),
        ("decode", figures.rate(measured.decode_rate)),
        ("memory reads", f"{measured.read_rate / 1e9:.1f} GB/s, which allow {figures.rate(measured.decode_limit)}"),
        ("of that limit", f"{measured.decode_rate / measured.decode_limit:.0%}"),
        ("cache blocks", f"{taken}, {blocks.failures:,} allocation failures"),
        ("loss", in_words(lost or info.loss, info)),
        ("process", figures.memory(measured.process_bytes)),
    ):
        results.line(f"{label:<14}{value}")
