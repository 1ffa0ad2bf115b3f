"""The vocabulary of a model for commands that need no weights: files fetched, header read, notices printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinychat.catalog import ModelCard
from tinychat.cli.console import Notices
from tinychat.cli.files import fetched

if TYPE_CHECKING:
    from tinychat.engine.vocabulary import Vocabulary


def vocabulary_of(card: ModelCard) -> Vocabulary:
    """Read a model's tokenizer: a folder with tokenizer.json alone, or a GGUF file without tensors, will do.

    Raises:
        TinychatError: There is none that tinychat can read.
    """
    from tinychat.engine.vocabulary import Vocabulary
    from tinychat.weights.gguf import read_header

    path = fetched(card, weights=False)
    vocabulary = Vocabulary.read(path, None if path.is_dir() else read_header(path).metadata)
    notices = Notices()
    for notice in vocabulary.tokenizer.notices:
        notices.line(f"note: {notice}")
    return vocabulary
