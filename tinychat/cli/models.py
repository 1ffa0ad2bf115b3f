"""`tinychat pull`, `list` and `show`: models as files."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tinychat.catalog import Catalog
from tinychat.cli import options
from tinychat.cli.console import Notices, Results
from tinychat.cli.files import card_of, fetched
from tinychat.errors import ModelNotFound
from tinychat.ui import figures

if TYPE_CHECKING:
    from tinychat.engine.preview import Preview


def pull(model: options.Model) -> None:
    """Download a model; print where it is.

    One that is here already costs no request.
    """
    Results().line(str(fetched(card_of(model))))


def list_(as_json: options.AsJson = False) -> None:
    """List the models here, and known names."""
    from tinychat import hub

    catalog = Catalog.load()
    here = hub.installed(catalog)
    results = Results()
    if as_json:
        results.json(
            [
                {
                    "name": entry.name,
                    "source": entry.source,
                    "path": entry.path,
                    "bytes": entry.bytes,
                    "complete": entry.complete,
                    "last_used": entry.last_used,
                }
                for entry in here
            ]
        )
        return
    sizes = {entry.name: entry for entry in here}
    width = max(len(name) for name in [*sizes, *(card.name for card in catalog)])
    if here:
        results.line("On this machine:")
        for entry in here:
            used = datetime.fromtimestamp(entry.last_used)
            state = "" if entry.complete else ", not complete"
            results.line(f"  {entry.name:<{width}}  {figures.memory(entry.bytes):>6}  used {used:%Y-%m-%d}{state}")
    if others := [card for card in catalog if card.name not in sizes]:
        results.line("Known by name, fetched when first used:")
        for card in others:
            results.line(f"  {card.name:<{width}}  {card.summary} ({card.licence})")
    results.line(f"`tinychat run` takes {catalog.default}. Others: a Hub id (org/name), a folder, a .gguf file.")


def show(model: options.Model, as_json: options.AsJson = False) -> None:
    """Tell what a model is and would take.

    From the headers of its files alone; no weight is read.
    """
    from tinychat import hub
    from tinychat.engine.opening import open_model

    card = card_of(model)
    path = hub.located(card)
    if path is None:
        raise ModelNotFound(
            f"{card.name} is not on this machine (or not all of it).", f"`tinychat pull {model}` fetches it."
        )
    opened = open_model(path, card)
    with opened.checkpoint:
        from tinychat.engine.preview import preview

        found = preview(opened)
    notices = Notices()
    for notice in found.notices:
        notices.line(f"note: {notice}")
    if as_json:
        Results().json(_described(found))
    else:
        _print(Results(), found, card.name, str(path))


def _described(found: Preview) -> dict[str, Any]:
    return {
        "arch": found.architecture,
        "parameters": found.parameters,
        "context": found.context,
        "vocabulary": found.vocabulary,
        "template": found.template,
        "format": "base" if found.template is None else "chat",
        "sampler": {name: [value, source] for name, value, source in found.sampler if name != "logit_bias"},
        "tensors": {kind: [count, size] for kind, (count, size) in found.tensors.items()},
        "becomes": {kind: list(forms) for kind, forms in found.becomes.items()},
        "weights_bytes": found.weights_bytes,
        "prefill_copy": {"kept": found.copy.kept, "bytes": found.copy.nbytes, "reason": found.copy.reason},
        "cache_bytes": {str(tokens): size for tokens, size in found.cache_bytes.items()},
        "loss": {form: asdict(loss) for form, loss in found.losses.items()} or "not measured",
        "fits": found.fits,
    }


def _becomes(kind: str, forms: tuple[str, ...]) -> str:
    """Say what is made of tensors of a type: "Q4_K -> int4, its codes kept"."""
    if not forms:
        return f"{kind} -> not used"
    plain = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}
    ways = []
    for form in forms:
        if form in ("int8", "int4"):
            ways.append(f"{form} (codes as they are)")
        elif kind not in plain:
            ways.append(f"{form} (dequantised)")
        else:
            ways.append(form if plain[kind] == form else f"{form} ({'widened' if form == 'fp32' else 'rounded'})")
    return f"{kind} -> {' and '.join(ways)}"


def _print(results: Results, found: Preview, name: str, path: str) -> None:
    template = "none: it continues a transcript" if found.template is None else "its own"
    rows = [
        ("model", f"{name} ({found.architecture}, {figures.parameters(found.parameters)} parameters)"),
        ("files", path),
        ("vocabulary", f"{found.vocabulary:,} tokens"),
        ("template", template),
        ("context", f"{found.context:,} tokens"),
        ("stored as", ", ".join(f"{n} {t} ({figures.memory(size)})" for t, (n, size) in found.tensors.items())),
        ("becomes", ", ".join(_becomes(kind, forms) for kind, forms in found.becomes.items())),
        ("weights", ", ".join(f"{dtype} {figures.memory(size)}" for dtype, size in found.weights_bytes.items())),
        *((("copy", found.copy.reason),) if found.copy.reason else ()),
        ("cache", ", ".join(f"{tokens:,} tokens {figures.memory(s)}" for tokens, s in found.cache_bytes.items())),
        *(("loss", f"{form}: {figures.loss(loss)}") for form, loss in found.losses.items()),
        *(() if found.losses else (("loss", figures.loss(None)),)),
        ("fits", "yes" if found.fits else "not into the memory that is free now"),
    ]
    for label, value in rows:
        results.line(f"{label:<12}{value}")
    results.line("sampler")
    for setting, start, source in found.sampler:
        if setting != "logit_bias":
            results.line(f"  {setting:<20}{'drawn for each reply' if start is None else start}  ({source})")
