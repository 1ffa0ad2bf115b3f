"""The whole contract between the screen and the engine: commands go down, events come up.

Everything here is frozen data of numbers, strings, bytes and tuples, so that it can cross a thread today and a socket
tomorrow. An engine is anything with the three methods of `Engine`: the local thread, a script in the tests.

It is one file of more than 400 lines because it is one contract: whoever writes either side reads it whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Final, Literal, Protocol

from tinychat.catalog import ModelCard
from tinychat.ranges import SAMPLER_RANGES as SAMPLER_RANGES
from tinychat.ranges import Range as Range

# ---------------------------------------------------------------------------------------------------------------------
# Settings

MAX_SEED: Final = 2**63 - 1

SamplerOrder = Literal["transformers", "llama.cpp"]


@dataclass(frozen=True, slots=True)
class SamplerSettings:
    """How the next token is chosen. The defaults are the built-in ones.

    Raises:
        ValueError: A value is out of its range; the sentence names setting, value and range.
    """

    temperature: float = 0.8
    """0 is greedy: the best token, always."""
    top_k: int = 40
    """Keep the k best tokens; 0 is off."""
    top_p: float = 0.95
    """Keep the best tokens until their probability sums to p; 1 is off, 0 keeps one."""
    min_p: float = 0.0
    """Drop tokens less probable than this share of the best one's probability; 0 is off."""
    repetition_penalty: float = 1.0
    """Divide (where positive) or multiply (where negative) the logit of a token seen in prompt or reply; 1 is off."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once for each time the reply holds it."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token the reply holds."""
    seed: int | None = None
    """Starts the random numbers of each reply; None draws one a reply and reports it."""
    order: SamplerOrder = "transformers"
    """Whose order of the filters: transformers' (temperature first) or llama.cpp's (temperature last)."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, amount added to its logit); minus infinity bans the token. Ids past the vocabulary have no effect."""
    speculate: int = 0
    """Guess up to so many tokens ahead and check them in one pass of the model, which changes the speed and not the
    tokens; 0 is off."""

    def __post_init__(self) -> None:
        for name, limits in SAMPLER_RANGES.items():
            limits.check(name, getattr(self, name))
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed is {self.seed}, but has to be 0 to {MAX_SEED}.")
        for token_id, amount in self.logit_bias:
            if token_id < 0 or not amount < math.inf:
                raise ValueError(f"logit_bias adds {amount} to token {token_id}: no such amount, or no such token.")
        if self.order not in ("transformers", "llama.cpp"):
            raise ValueError(f"order is {self.order!r}, but has to be transformers or llama.cpp.")


@dataclass(frozen=True, slots=True)
class Limits:
    """When a reply ends, besides the model's own end ids and the end of the context."""

    max_tokens: int | None = None
    """At most so many new tokens; None is no limit."""
    stop: tuple[str, ...] = ()
    """Strings that end the reply and are not part of it."""
    ignore_end: bool = False
    """Go on after end ids (benchmarks)."""

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max-tokens is {self.max_tokens}, but has to be 1 or more.")
        if "" in self.stop:
            raise ValueError("A stop string is empty; it would end every reply before its first token.")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation as the engine is told of it."""

    role: str
    """system, user or assistant."""
    text: str
    """What was said; of a thinking model, without its thinking."""
    ids: tuple[int, ...] = ()
    """The token ids a reply was made of, thinking included, end ids left out; empty where only the text is known."""
    vocabulary: str = ""
    """Hash of the vocabulary that `ids` belong to."""
    thinking: str = ""
    """What a thinking model thought before it answered."""


Detail = Literal["none", "basic", "full"]
"""What each token reports: nothing; logprob, rank and entropy; these and the alternatives."""

# ---------------------------------------------------------------------------------------------------------------------
# Commands


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Fetch a model if need be, and load it in place of the one that is loaded."""

    load_id: int
    card: ModelCard
    dtype: str = "auto"
    """auto, fp32, bf16, or a form that changes the weights and so has to be asked for: int8, int4."""
    head: str = "auto"
    """Form of the head: auto, bf16, int8, int4. auto is `dtype` where that is dense, else what the file holds."""
    cache_dtype: str = "auto"
    """Form of the caches: auto (as the layers' products: bf16 or fp32), or int8, which has to be asked for."""
    prefill_copy: str = "auto"
    """Whether weights in blocks get a bf16 copy, which long prompts are multiplied by: auto (where the processor gains
    by it and memory is plentiful), always, never. A draft model gets none."""
    context: int | None = None
    """Tokens the caches hold; None chooses by the model and the free memory."""
    threads: int | None = None
    """Threads of the matrix products; None is one a core."""
    device: str = "cpu"
    sampler: tuple[tuple[str, float | int | str], ...] = ()
    """Sampler settings the person asked for by flag, as (setting, value): they go before every default."""
    draft: ModelCard | None = None
    """A smaller model of the same vocabulary that guesses ahead where the settings ask for it; None looks into the
    conversation instead."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How the reply that is being made goes on from here; alone or as a part of `Generate`."""

    mode: Literal["play", "pause", "step", "sentence"] = "play"
    """play: token after token; step: one token, then pause; sentence: to the end of the sentence, then pause."""
    rate: float | None = None
    """Tokens a second at most while it plays; None: as fast as the machine can."""

    def __post_init__(self) -> None:
        if self.rate is not None and not self.rate > 0:
            raise ValueError(f"rate is {self.rate}, but has to be above 0.")


@dataclass(frozen=True, slots=True)
class Generate:
    """Say the next turn after `messages`."""

    turn_id: int
    messages: tuple[Message, ...]
    sampler: SamplerSettings = field(default_factory=SamplerSettings)
    limits: Limits = field(default_factory=Limits)
    forced_ids: tuple[int, ...] = ()
    """Ids the reply begins with, whatever the sampler would say (a branch)."""
    detail: Detail = "basic"
    raw: bool = False
    """No template: continue the text of the only message as it is."""
    think: bool | None = None
    """What the template's `enable_thinking` is set to; None leaves it to the template."""
    branch_of: int | None = None
    """The turn whose first tokens `forced_ids` repeats, all but the last: what was kept of them is this turn's, too."""
    pace: Pace = Pace()
    """How the reply begins to go on."""
    begin: Message | None = None
    """What the reply begins with, in place of `forced_ids`: a reply that is gone on from, a dictated start. Its ids
    where they are of this vocabulary, else its text encoded; they don't count against the limit of tokens."""


@dataclass(frozen=True, slots=True)
class SetSampler:
    """Use these settings from the next token on, in the reply that is being made."""

    sampler: SamplerSettings


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop a reply or a load. What was said so far is kept."""

    turn_id: int | None = None
    load_id: int | None = None


@dataclass(frozen=True, slots=True)
class Tokenize:
    """Split a text that a person types into pieces; answered by `Tokenized`, between tokens if need be."""

    request_id: int
    text: str


@dataclass(frozen=True, slots=True)
class ExplainText:
    """Ask how a text that a person types becomes tokens; answered by `TextExplained`, between tokens if need be."""

    request_id: int
    text: str


@dataclass(frozen=True, slots=True)
class Explain:
    """Ask why a token of a reply was said; answered by `Explained`, between tokens or while paused."""

    request_id: int
    turn_id: int
    index: int
    """Of the token in the reply, from 0; one more than it has: the token that would be next."""
    sampler: SamplerSettings | None = None
    """What the chain would have made of it by these settings; None: those that were in force."""


@dataclass(frozen=True, slots=True)
class Inspect:
    """Ask what happened in the layers at a token; answered by `Probed`, between tokens or while paused."""

    request_id: int
    turn_id: int
    index: int


@dataclass(frozen=True, slots=True)
class Lens:
    """Ask what the model would have said after each layer, in place of a token; answered by `Lensed`, between tokens or
    while paused."""

    request_id: int
    turn_id: int
    index: int


@dataclass(frozen=True, slots=True)
class Attend:
    """Ask how much each token before a token was attended to where that was decided; answered by `Attended`, between
    tokens or while paused. The weights of the token asked about last are kept while `attention` is looked at."""

    request_id: int
    turn_id: int
    index: int
    layer: int | None = None
    """From 0; None: the maximum over all heads of all layers."""
    head: int | None = None
    """A query head of the layer, from 0; None: the mean of all of them."""


@dataclass(frozen=True, slots=True)
class DescribePrompt:
    """Ask for the pieces of the prompt of a turn; answered by `PromptDescribed`."""

    request_id: int
    turn_id: int


@dataclass(frozen=True, slots=True)
class MapCache:
    """Ask what the caches hold and how it came there; answered by `CacheMapped`, between tokens if need be."""

    request_id: int
    position: int = 0
    """Where a person looks: the tokens around it are told by name."""


View = Literal["layers", "attention", "time"]
"""What costs the engine something while somebody looks: statistics of the layers, the weights of attention at the token
asked about last, a profile of a token's time."""


@dataclass(frozen=True, slots=True)
class SetViews:
    """Look at these from the next token on, and at nothing else."""

    views: frozenset[View] = frozenset()


@dataclass(frozen=True, slots=True)
class Unload:
    """Let go of the model and its caches."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Stop everything and end the engine."""


Command = (
    LoadModel
    | Generate
    | SetSampler
    | Pace
    | Cancel
    | Tokenize
    | ExplainText
    | Explain
    | Inspect
    | Lens
    | Attend
    | DescribePrompt
    | MapCache
    | SetViews
    | Unload
    | Shutdown
)

# ---------------------------------------------------------------------------------------------------------------------
# Events


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """Bytes fetched so far, of all files together."""

    load_id: int
    file: str
    done: int
    total: int
    """0 while it is not known."""


@dataclass(frozen=True, slots=True)
class ModelLoading:
    """A stage of loading has begun or moved on."""

    load_id: int
    stage: str
    """What is being done, in words a person reads: "reading weights"."""
    fraction: float
    """0 to 1, of the whole load."""


@dataclass(frozen=True, slots=True)
class TokenizerReady:
    """The vocabulary can be used; the weights may still be loading."""

    load_id: int
    vocabulary: str
    """Hash of the vocabulary."""
    vocabulary_size: int


@dataclass(frozen=True, slots=True)
class QuantisationLoss:
    """What a form of the weights loses against the numbers of the file in fp32, on a fixed text."""

    divergence: float
    """Mean over the text of KL(exact || ours), in nats, of the distributions of the next token."""
    worst_error: float
    """Mean over the text of |ours - exact| / |exact| of the states after the layer where that is largest."""
    worst_layer: int
    """That layer, from 0."""
    tokens: int
    """Of the text."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What was loaded, and what became of what the file held."""

    name: str
    """Alias, Hub id or file name."""
    architecture: str
    """The family, as its users spell it: "Llama"."""
    parameters: int
    """Numbers in the checkpoint; a tied head counts once."""
    dtype: str
    """Form of the weights of the layers: fp32, bf16, int8, int4."""
    head_dtype: str
    """Form of the head (and of the embedding it may be tied to)."""
    dtype_reason: str
    """The same in words: "int4 (file Q4_1), head bf16 (file Q8_0)", "int8 (file F16, quantised), ..."."""
    format: Literal["chat", "base"]
    """Whether the model has a chat template or continues a transcript."""
    thinking: bool
    """Whether the template knows of thinking."""
    context: int
    """Tokens the caches hold."""
    model_context: int
    """Tokens the model was made for."""
    layers: int
    weights_bytes: int
    """Bytes resident for weights, each shared tensor counted once, and a copy for prompts too."""
    cache_bytes: int
    """Bytes reserved for all caches."""
    vocabulary: str
    """Hash of the vocabulary, as in `Message.vocabulary`."""
    vocabulary_size: int
    kernel: str
    """The path replies will take: "numba", "torch"; "numba+copy" where long prompts go through a bf16 copy."""
    threads: int
    load_seconds: float
    """From the files on disk to ready, without importing torch and compiling kernels."""
    stop: tuple[str, ...] = ()
    """Stop strings of the transcript of a base model; the engine applies them by itself."""
    max_tokens: int | None = None
    """Limit of a reply where the person sets none; base models never stop by themselves."""
    loss: QuantisationLoss | None = None
    """What this form loses, if it was measured before."""
    copy_bytes: int = 0
    """Those of `weights_bytes` that are a bf16 copy of weights in blocks, for long prompts."""
    copy_reason: str = ""
    """A sentence: why there is such a copy, or none; empty where no weights are in blocks."""
    notices: tuple[str, ...] = ()
    """What the person has to be told: fallbacks, a context smaller than the model's, ignored settings."""
    fingerprint: str = ""
    """What tells the weight files from all others; see `engine/loss_store.py`."""


@dataclass(frozen=True, slots=True)
class ModelReady:
    """A model is loaded and can be talked to."""

    load_id: int
    info: ModelInfo
    sampler: SamplerSettings
    """What the sampler starts with."""
    sources: tuple[tuple[str, str], ...]
    """(setting, where its value came from): "models.toml", "generation_config.json", "built-in"."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the prompt: ids[start:end]."""

    start: int
    end: int
    origin: Literal["template", "person", "model"]
    role: str


@dataclass(frozen=True, slots=True)
class PromptRendered:
    """What the model is fed for this turn."""

    turn_id: int
    ids: tuple[int, ...]
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """So much of the prompt is in the caches: `reused` from before, `done - reused` computed now. What is dictated is
    counted with it."""

    turn_id: int
    done: int
    total: int
    reused: int


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that could have been said. The probability is the model's own, before the sampler."""

    token_id: int
    piece: bytes
    probability: float


@dataclass(frozen=True, slots=True)
class TokenEmitted:
    """One token was chosen."""

    turn_id: int
    index: int
    """From 0."""
    token_id: int
    piece: bytes
    """The bytes it stands for; of a control token, its name."""
    text: str
    """What may be shown of the answer now: whole characters, held back while a stop string may be beginning; often
    empty."""
    thinking: str = ""
    """What may be shown of the thinking now."""
    logprob: float | None = None
    """Natural logarithm of its probability, before the sampler."""
    rank: int | None = None
    """From 1, before the sampler."""
    entropy: float | None = None
    """Of the whole distribution before the sampler, in nats."""
    alternatives: tuple[Alternative, ...] = ()
    accepted: bool = False
    """Whether it had been guessed: a token that was drafted, and then drawn."""
    drafted: int = 0
    """How many tokens the reply has drafted so far."""
    seconds: float = 0.0
    """Since the token before it, or since the prompt was computed; time spent paused doesn't count."""
    draw: float | None = None
    """The random number that decided, from 0 to 1; None: it was dictated."""


@dataclass(frozen=True, slots=True)
class SamplerUsed:
    """A reply's tokens are drawn by these settings from here on: told when it begins, and when they change."""

    turn_id: int
    index: int
    """Of the first token that is."""
    sampler: SamplerSettings
    """Its seed is the one that the reply's draws began with, also where none was asked for."""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The cache of one layer, true to its tensors' own sizes."""

    used_tokens: int
    reserved_tokens: int
    used_bytes: int
    reserved_bytes: int
    dtype: str


@dataclass(frozen=True, slots=True)
class CacheBlocks:
    """The blocks of 32 tokens that the caches take from, of all layers that see equally far once."""

    used: int = 0
    shared: int = 0
    """Used by several sequences: versions of a reply, branches."""
    free: int = 0
    failures: int = 0
    """How often one was asked for and there was none."""


@dataclass(frozen=True, slots=True)
class CacheStats:
    """All caches; at most ten a second."""

    layers: tuple[LayerCache, ...]
    reused_tokens: int
    """How many of the tokens this turn found in the caches."""
    blocks: CacheBlocks = CacheBlocks()


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Bytes; at most ten a second."""

    weights: int
    cache_used: int
    cache_reserved: int
    process: int
    """Resident size of this process."""
    available: int
    """What the operating system could still give."""
    copy: int = 0
    """Those of `weights` that are a bf16 copy, for long prompts."""
    kept: int = 0
    """Kept of the tokens of replies, so that it can be told why each was said; and the weights of `Attend`."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of a typed text, or bytes that have no token. The pieces' bytes join to the text's bytes."""

    token_id: int | None
    """None: the vocabulary has no token for these bytes, the model will not see them."""
    data: bytes
    """The bytes of the text it covers."""
    start: int
    """Offset of its first byte in the text."""
    special: bool = False
    """Whether it is a control token."""


@dataclass(frozen=True, slots=True)
class Tokenized:
    """The answer to `Tokenize`. No pieces at all while no tokenizer is loaded."""

    request_id: int
    pieces: tuple[Piece, ...]
    ready: bool = True
    """False: no tokenizer yet; ask again after `TokenizerReady`."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """What BPE joins: a byte or a character at first, a token at last."""

    data: bytes
    """The bytes of the text that it stands for."""
    token_id: int
    fallback: Literal["", "byte", "unknown"] = ""
    """byte: one byte of a character that is no token; unknown: characters that are none, and whose bytes are none."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Two neighbours become one symbol."""

    at: int
    """Place of the left one among the symbols before this merge, from 0."""
    token_id: int
    """What they become."""
    rank: int
    """Of the pair among all merges of the vocabulary, from 0: the lowest goes first."""
    score: float | None
    """Of what they become, where the vocabulary ranks by scores: the highest goes first."""
    ranks: tuple[int | None, ...]
    """Of each two neighbours before this merge, one fewer than symbols; None: no merge joins them."""


@dataclass(frozen=True, slots=True)
class Split:
    """A piece that a text is cut into, and how it becomes tokens."""

    kind: Literal["merged", "whole", "long", "added", "control"]
    """merged: by the merges; whole: the piece is a token, and no merge is looked at; long: merged, but too long to be
    walked; added, control: a token that is found in the text before it is cut."""
    data: bytes
    """The bytes it stands for: those of the text, or of what the vocabulary makes of it first."""
    symbols: tuple[Symbol, ...] = ()
    """What merging begins with; of a piece that isn't walked, its tokens."""
    merges: tuple[Merge, ...] = ()
    lost: bytes = b""
    """Those of its bytes that the vocabulary has no token for: they are gone before merging, which joins what is left
    over the gaps."""
    tokens: tuple[Symbol, ...] = ()
    """What the model is fed."""
    note: str = ""
    """Where no merges lead to the tokens: why, as a sentence."""

    def after(self, count: int) -> tuple[Symbol, ...]:
        """Return the symbols after the first `count` merges."""
        symbols = list(self.symbols)
        for merge in self.merges[:count]:
            left, right = symbols[merge.at : merge.at + 2]
            symbols[merge.at : merge.at + 2] = [Symbol(left.data + right.data, merge.token_id)]
        return tuple(symbols)


@dataclass(frozen=True, slots=True)
class BpeWalk:
    """How a text becomes tokens: it is cut, then each piece is merged by itself."""

    splits: tuple[Split, ...]
    """In order."""
    left_out: int
    """How many more splits a long text has, that aren't explained."""
    normalized: bytes | None
    """The text that is cut, where that isn't the text as typed: a space before it, composed characters."""
    by_score: bool
    """Whether the vocabulary ranks its merges by scores (SentencePiece); else by the order they were learned in."""


@dataclass(frozen=True, slots=True)
class TextExplained:
    """The answer to `ExplainText`."""

    request_id: int
    walk: BpeWalk | None = None
    problem: str = ""
    """Why there is no answer, as a sentence; empty: there is."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """How far apart two engines that share a thread are, where each chose a token; the first of the two tells it.

    It comes as long as both have read the same ids of the same vocabulary, the first token that differs included.
    """

    turn_id: int
    """Of the first engine."""
    index: int
    nats: float
    """KL(first || second) of the models' own distributions, before the sampler (Kullback and Leibler 1951)."""


@dataclass(frozen=True, slots=True)
class Paused:
    """The reply waits for a `Pace`, a `Cancel` or other settings before its next token."""

    turn_id: int
    index: int
    """Of the next token."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that could have been said, and how it fared in the sampler's chain."""

    token_id: int
    piece: bytes
    logit: float
    """The model's own."""
    probabilities: tuple[float, ...]
    """The model's own; then, for each stage of `Explained.stages`, what it would be if the chain ended there: the
    softmax over the tokens that are left. 0 from the stage on that removed the token."""
    removed_by: str = ""
    """The stage that removed it; empty: it could be drawn."""
    interval: tuple[float, float] | None = None
    """The draws, from 0 to 1, that choose it: from the first up to, not with, the second."""


@dataclass(frozen=True, slots=True)
class Explained:
    """The answer to `Explain`."""

    request_id: int
    turn_id: int
    index: int
    chosen: int | None = None
    """Id of the token that was said; None: none was yet."""
    sampler: SamplerSettings = field(default_factory=SamplerSettings)
    """The settings that the table is made by."""
    stages: tuple[str, ...] = ()
    """What the chain does, in order: bias, repetition, frequency and presence, temperature, top-k, top-p, min-p, as
    far as it is on; greedy, where the temperature is 0."""
    candidates: tuple[Candidate, ...] = ()
    """The best by the model's own probability, the token that was said, and all others that could be drawn, as far as
    there is room; best first."""
    survivors: int = 0
    """How many tokens could be drawn."""
    rest: float = 0.0
    """The model's own probability of all tokens that are not among the candidates."""
    draw: float | None = None
    """The random number that decides, from 0 to 1; None: greedy, or not drawn yet."""
    forced: bool = False
    """Whether the token was dictated, not drawn."""
    recomputed: bool = False
    """Whether the model was run again for this, over what the caches hold."""
    problem: str = ""
    """Why there is no answer, as a sentence; empty: there is."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics of the numbers of a tensor."""

    least: float
    most: float
    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class LayerStatistics:
    """What a layer did at one token."""

    residual_norm: float
    """Euclidean norm of the residual stream after the layer."""
    attn_out: Spread
    """Of what attention adds to the stream."""
    mlp_out: Spread
    """Of what the MLP adds to it."""
    head_entropy: tuple[float, ...]
    """Of each query head's attention over the tokens it sees, in nats."""
    attention_ms: float
    mlp_ms: float
    """Milliseconds, each with the norm before it; of a pass with taps, which is slower than one without."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What happened in the layers at a token: while `layers` is looked at, or as the answer to `Inspect`."""

    turn_id: int
    index: int
    layers: tuple[LayerStatistics, ...] = ()
    request_id: int | None = None
    """Of the `Inspect` that this answers."""
    recomputed: bool = False
    """Whether the model was run again for this, over what the caches hold."""
    problem: str = ""
    """Why there is no answer, as a sentence; empty: there is."""


@dataclass(frozen=True, slots=True)
class LensLayer:
    """What the final norm and the head make of the residual stream after a layer."""

    best: tuple[Alternative, ...]
    """The tokens that would be most probable, best first."""
    rank: int | None = None
    """Of the token that was said, from 1; None: none was yet."""
    probability: float | None = None
    """Likewise."""


@dataclass(frozen=True, slots=True)
class Lensed:
    """The answer to `Lens`. The model is run again for it, over what the caches hold."""

    request_id: int
    turn_id: int
    index: int
    chosen: int | None = None
    """Id of the token that was said; None: none was yet."""
    layers: tuple[LensLayer, ...] = ()
    problem: str = ""
    """Why there is no answer, as a sentence; empty: there is."""

    @property
    def settled(self) -> int | None:
        """The first layer from which on the token that was said is the most probable; None: it isn't after the last."""
        first = len(self.layers)
        while first and self.layers[first - 1].rank == 1:
            first -= 1
        return first if first < len(self.layers) else None


@dataclass(frozen=True, slots=True)
class Attended:
    """The answer to `Attend`. The model is run again for it, over what the caches hold."""

    request_id: int
    turn_id: int
    index: int
    layer: int | None = None
    head: int | None = None
    """As in `Attend`."""
    weights: tuple[float, ...] = ()
    """What each position of the sequence is given, up to the last before the token, which decided it. Those of a head,
    and their mean over a layer, sum to 1."""
    first: int = 0
    """The first position that is seen: those before it lie behind the window."""
    window: int | None = None
    """Positions that are seen at most, the own one included; None: all."""
    largest: tuple[tuple[int, int], ...] = ()
    """Of a mean or a maximum: layer and head of the largest weight that each position is given."""
    layers: int = 0
    heads: int = 0
    """Query heads of a layer."""
    kv_heads: int = 0
    """Heads of keys and values, which as many query heads share each."""
    problem: str = ""
    """Why there is no answer, as a sentence; empty: there is."""


@dataclass(frozen=True, slots=True)
class Profiled:
    """Where the time of one token went, in milliseconds: a sample, while `time` is looked at."""

    turn_id: int
    index: int
    attention: float
    mlp: float
    head: float
    sampling: float
    rest: float
    """Python between the products, the tokenizer, events."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """How fast this machine reads memory, measured once when `time` is first looked at."""

    bytes_per_second: float
    bytes_per_token: int
    """What a token reads of the weights; the caches come on top."""


@dataclass(frozen=True, slots=True)
class PromptDescribed:
    """The answer to `DescribePrompt`."""

    request_id: int
    turn_id: int
    pieces: tuple[Piece, ...] = ()
    """In order; `start` counts the bytes of the pieces before it."""
    spans: tuple[Span, ...] = ()
    """Where each stretch of ids came from."""
    bos: tuple[int, ...] = ()
    """Indices of the first pieces that are the beginning-of-sequence token: one in a sound prompt of a model that has
    one. Some templates put the same token elsewhere, too."""
    problem: str = ""
    """Why there is no answer, as a sentence; empty: there is."""


Arrival = Literal["reused", "computed", "drawn", "accepted", "guessed"]
"""How the last turn got a token into the caches: it was there before; it was computed with the prompt; it was computed
after it was drawn; it had been guessed, and was then drawn; it is a guess, not judged yet or about to be taken off."""


@dataclass(frozen=True, slots=True)
class CachedRun:
    """Positions that follow each other and have all this in common."""

    start: int
    end: int
    """The first position after it."""
    arrival: Arrival
    origin: Literal["template", "person", "model", "unknown"] = "unknown"
    """unknown: what is kept of the turn is gone."""
    role: str = ""
    message: int = 0
    """Which message of the conversation it belongs to, from 1; 0: the template, or unknown."""


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """A block of a sequence."""

    number: int
    """Its place in the pool."""
    references: int
    """How many sequences name it; whoever writes into a block that several name takes a copy first."""
    sharers: tuple[int, ...] = ()
    """Which of the kept sequences name it, too: indices into `CacheMapped.kept`."""


@dataclass(frozen=True, slots=True)
class CachedTable:
    """The blocks of the growing sequence, in the layers that see equally far."""

    layers: int
    """How many layers."""
    window: int | None
    """Positions a token sees there, itself included; None: all."""
    first: int
    """Blocks that were let go behind the window: `blocks` begins with the one after them."""
    blocks: tuple[CachedBlock, ...]
    free: int
    """Blocks of the pool that nobody names."""


@dataclass(frozen=True, slots=True)
class KeptSequence:
    """A sequence that is kept beside the growing one, so that it needn't be computed again."""

    length: int
    common: int
    """Tokens it begins with that are the growing one's, too."""


@dataclass(frozen=True, slots=True)
class CacheTotals:
    """What happened in the caches since the model was loaded."""

    reused: int = 0
    """Tokens of prompts that were there before. With `computed` they are all of the prompts that were read."""
    computed: int = 0
    """Tokens of prompts that were computed."""
    recomputed: int = 0
    """Tokens that were computed again within a reply, since the model turns longer sequences by other angles."""
    trims: int = 0
    """How often a prompt used only the beginning of what was there, so that the rest was taken off the sequence."""
    trimmed: int = 0
    """Tokens that were taken off by that; those of a sequence that is kept aren't lost."""
    refused: int = 0
    """Guessed tokens that were taken off since another one was drawn."""
    forks: int = 0
    """Sequences that were put aside, sharing blocks with the one that goes on."""
    returns: int = 0
    """How often one of them was taken up again."""
    copies: int = 0
    """Blocks that were copied since a sequence wrote into one that another one names."""
    failures: int = 0
    """How often a block was asked for and there was none."""

    @property
    def hit_rate(self) -> float:
        """Share of all prompts' tokens that were there before; 0 where there were no prompts."""
        return self.reused / max(1, self.reused + self.computed)


@dataclass(frozen=True, slots=True)
class CacheMapped:
    """The answer to `MapCache`: the sequence that grows, position by position, and those that are kept beside it."""

    request_id: int
    length: int = 0
    """Tokens of the growing sequence."""
    capacity: int = 0
    runs: tuple[CachedRun, ...] = ()
    """They follow each other and cover all positions."""
    block: int = 32
    """Tokens of a block."""
    tables: tuple[CachedTable, ...] = ()
    """One for each window there is among the layers."""
    kept: tuple[KeptSequence, ...] = ()
    """Older ones first."""
    token_bytes: tuple[int, ...] = ()
    """Bytes that a token takes in each layer."""
    dtype: str = ""
    """Of keys and values."""
    totals: CacheTotals = CacheTotals()
    first_piece: int = 0
    """Position of the first of `pieces`."""
    pieces: tuple[Piece, ...] = ()
    """The tokens around the position that was asked about; `start` is 0 for all."""
    problem: str = ""
    """Why there is no answer, as a sentence; empty: there is."""


FinishReason = Literal["eos", "stop", "length", "context", "cancelled", "failed"]
"""failed: an error stopped it; `EngineFailed` follows, and what was said is kept."""


@dataclass(frozen=True, slots=True)
class TurnFinished:
    """A reply is complete; `ids` and `text` are the turn's final truth."""

    turn_id: int
    reason: FinishReason
    ids: tuple[int, ...]
    """What the turn is made of from now on: no end ids, nothing of a stop string."""
    text: str
    """Decode of `ids`, without thinking. It begins with the texts of all tokens and may end with what was held back."""
    thinking: str
    prompt_tokens: int
    reused_tokens: int
    new_tokens: int
    """Tokens chosen, end ids and cut ones counted."""
    prefill_seconds: float
    decode_seconds: float
    """From the first token that was drawn to the last; time spent paused doesn't count."""
    first_token_seconds: float
    """From the command to the first token."""
    seed: int
    kernel: str
    """The path the reply took: "numba", "torch"; "numba+lookup" where it drafted tokens from the conversation,
    "numba+draft" where a second model did."""
    drafted: int = 0
    """Tokens guessed ahead."""
    accepted: int = 0
    """Those of them that were then drawn."""
    forced: int = 0
    """Tokens that were dictated: they are computed (or found in the caches) with the prompt, and no decode step."""

    @property
    def prefill_rate(self) -> float:
        """Computed prompt tokens a second, dictated ones with them; 0 where nothing was timed."""
        computed = self.prompt_tokens + self.forced - self.reused_tokens
        return computed / self.prefill_seconds if self.prefill_seconds > 0 else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first that was drawn; 0 for replies of fewer than two."""
        decoded = self.new_tokens - self.forced - 1
        return decoded / self.decode_seconds if self.decode_seconds > 0 and decoded > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a person has to know about a turn or a load, that stopped neither."""

    text: str
    turn_id: int | None = None


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """A turn or a load ended in an error. What was said before it is kept."""

    summary: str
    remedy: str
    detail: str
    """The traceback, for the log."""
    turn_id: int | None = None
    load_id: int | None = None
    cancelled: bool = False
    """Whether the person stopped the load."""
    usage: bool = False
    """Whether what was asked for can't be: a number out of its range."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A recording is played, and at this place in it the person did this. No other engine tells of it."""

    command: Command


Event = (
    DownloadProgress
    | ModelLoading
    | TokenizerReady
    | ModelReady
    | PromptRendered
    | PrefillProgress
    | SamplerUsed
    | TokenEmitted
    | CacheStats
    | MemoryStats
    | Tokenized
    | TextExplained
    | Divergence
    | Paused
    | Explained
    | Probed
    | Lensed
    | Attended
    | Profiled
    | Bandwidth
    | PromptDescribed
    | CacheMapped
    | TurnFinished
    | Notice
    | EngineFailed
    | Replayed
)


class Engine(Protocol):
    """Anything that takes commands and gives events."""

    def send(self, command: Command) -> None:
        """Put a command into the inbox; never blocks."""

    def poll(self, timeout: float = 0.0) -> list[Event]:
        """Return all events there are, waiting up to `timeout` seconds for the first."""

    def close(self, timeout: float = 0.3) -> bool:
        """Shut down; return whether the engine ended within `timeout` seconds."""


SAMPLER_FIELDS: Final = tuple(f.name for f in fields(SamplerSettings))
