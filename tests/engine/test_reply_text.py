"""The text of a reply: what is shown as its ids come, where stop strings cut it, and which ids are kept."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from pathlib import Path

import families
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rulers import card
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

from tinychat.engine.opening import Opened, open_model
from tinychat.engine.reply_text import ReplyText
from tinychat.text.chat_template import ChatTemplate
from tinychat.text.tokenizer import Tokenizer

WORDS = ["AB", "ABC", "DE", "DEF", "HI", "JK", "\n\n", " the", "er:", "Us", "User", "User:", "<think>", "</think>"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    """All 256 bytes, then a few words, then two control tokens."""
    folder = tmp_path_factory.mktemp("reply") / "tokenizer"
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: place for place, character in enumerate(alphabet)}
    merges = []
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for word in sorted(WORDS, key=len):
        spelled = to_bytes.pre_tokenize_str(word)[0][0]
        for end in range(2, len(spelled) + 1):
            if spelled[:end] not in vocabulary:
                vocabulary[spelled[:end]] = len(vocabulary)
                merges.append((spelled[: end - 1], spelled[end - 1]))
    library = Library(models.BPE(vocabulary, merges))
    library.pre_tokenizer, library.decoder = to_bytes, decoders.ByteLevel()
    library.add_special_tokens(families.control("<|end|>", "<|start|>"))
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}), encoding="utf-8")
    return Tokenizer.from_folder(folder)


PLAIN = ChatTemplate("{{ messages[0].content }}")
THINKING = ChatTemplate("{{ messages[0].content }}<think>\n</think>")


def ids_of(tokenizer: Tokenizer, *words: str | bytes) -> list[int]:
    """Return one id a word, or a byte: how a model may spell what an encoder would spell otherwise."""
    found = []
    for word in words:
        wanted = word.encode() if isinstance(word, str) else word
        found.append(next(i for i in range(tokenizer.size) if tokenizer.bytes_of(i) == wanted))
    return found


def play(
    tokenizer: Tokenizer,
    ids: list[int],
    stops: Sequence[str] = (),
    template: ChatTemplate = PLAIN,
    *,
    inside: bool = False,
) -> tuple[ReplyText, list[str]]:
    """Push ids until a stop string is met, end the reply; return it and the texts that came with each id."""
    reply = ReplyText(tokenizer, template, stops, opens_thinking=inside)
    shown = []
    for token_id in ids:
        shown.append(reply.push(token_id)[0])
        if reply.stopped:
            break
    reply.finish()
    return reply, shown


# ---------------------------------------------------------------------------------------------------------------------
# Stop strings


@pytest.mark.parametrize(
    ("words", "stop", "shown", "text", "kept"),
    [
        # Over several tokens: nothing of it is shown while it may still come.
        (["ABC", "DEF", "G", "HI", "JK"], "DEFGHIJ", ["ABC", "", "", "", ""], "ABC", ["ABC"]),
        # Inside a token, with text after it.
        (["ABC", "DEF"], "DE", ["ABC", ""], "ABC", ["ABC"]),
        # Inside a token, with text before it: the ids before are kept, the rest is encoded anew.
        (["JK", "ABC"], "C", ["JK", "AB"], "JKAB", ["JK", "AB"]),
        (["JK", "ABC"], "BC", ["JK", "A"], "JKA", ["JK", "A"]),
        # From inside one token to inside another.
        (["ABC", "DEF"], "CD", ["AB", ""], "AB", ["AB"]),
        (["A", "B", "C", "DEF"], "CD", ["A", "B", "", ""], "AB", ["A", "B"]),
        # At the very start: nothing is left.
        (["ABC", "DEF"], "A", [""], "", []),
        (["ABC"], "ABC", [""], "", []),
        # Held back, and then it doesn't come.
        (["ABC", "DEF", "G", "HI"], "DEFGX", ["ABC", "", "", "DEFGHI"], "ABCDEFGHI", ["ABC", "DEF", "G", "HI"]),
        # Held back at the end of the reply: said after all.
        (["ABC", "DE"], "DEF!", ["ABC", ""], "ABCDE", ["ABC", "DE"]),
        # A beginning that repeats.
        (["A", "A", "B", "JK"], "AB", ["", "A", ""], "A", ["A"]),
        # A transcript's.
        (["HI", "\n", "User", ":"], "\nUser:", ["HI", "", "", ""], "HI", ["HI"]),
        (["HI", "\n\n", "User:"], "\nUser:", ["HI", "\n", ""], "HI\n", ["HI", "\n"]),
    ],
)
def test_stop_strings(tokenizer, words, stop, shown, text, kept):
    """Catches a stop that is seen only at a token's end, shown while it comes, or kept in the ids of the turn."""
    reply, seen = play(tokenizer, ids_of(tokenizer, *words), [stop])
    assert seen == shown
    assert reply.text == text
    assert reply.stopped == (text != "".join(words))
    assert reply.ids == ids_of(tokenizer, *kept)
    assert tokenizer.decode(reply.ids) == text


def test_the_stop_that_ends_first(tokenizer):
    """Of several, the first to be complete decides, and of two that end together the longer one."""
    ids = ids_of(tokenizer, "ABC", "DEF", "HI")
    assert play(tokenizer, ids, ["FH", "CD", "BC"])[0].text == "A"
    assert play(tokenizer, ids, ["EFHI", "F"])[0].text == "ABCDE"
    assert play(tokenizer, ids, ["D", "CD", "BCD"])[0].text == "A"


def test_a_character_over_several_tokens(tokenizer):
    """👋 is four bytes here: it is shown with its last one; stops end in it, behind it, and right before it."""
    wave = [bytes([byte]) for byte in "👋".encode()]
    ids = ids_of(tokenizer, "HI", *wave, "JK")
    assert play(tokenizer, ids)[1] == ["HI", "", "", "", "👋", "JK"]
    reply, shown = play(tokenizer, ids, ["👋"])
    assert (reply.text, reply.ids) == ("HI", ids[:1])
    assert "".join(shown) == "HI"
    reply, _ = play(tokenizer, ids, ["JK"])
    assert (reply.text, reply.ids) == ("HI👋", ids[:5])
    reply, _ = play(tokenizer, ids, ["I👋J"])
    assert (reply.text, tokenizer.decode(reply.ids)) == ("H", "H")
    # Two characters that begin alike, the stop is the other one.
    reply, _ = play(tokenizer, ids, ["🦙"])
    assert (reply.text, reply.stopped) == ("HI👋JK", False)


def test_a_reply_that_ends_inside_a_character(tokenizer):
    """What is left becomes U+FFFD, by the same rule as a decode of all ids; nothing is lost."""
    ids = ids_of(tokenizer, "HI", b"\xf0", b"\x9f")
    reply, shown = play(tokenizer, ids)
    assert shown == ["HI", "", ""]
    assert reply.text == "HI\ufffd" == tokenizer.decode(ids)
    assert reply.ids == ids
    reply, _ = play(tokenizer, ids, ["I\ufffd"])
    assert (reply.text, reply.ids) == ("H", ids_of(tokenizer, "H"))


def test_control_tokens_inside_a_reply(tokenizer):
    """They show nothing, but a model that says one in mid-reply has said it: it stays among the ids before a cut."""
    ids = ids_of(tokenizer, "HI", "<|start|>", "JK", "ABC")
    reply, shown = play(tokenizer, ids)
    assert (shown, reply.text, reply.ids) == (["HI", "", "JK", "ABC"], "HIJKABC", ids)
    reply, _ = play(tokenizer, ids, ["C"])
    assert (reply.text, tokenizer.decode(reply.ids)) == ("HIJKAB", "HIJKAB")
    assert reply.ids[:3] == ids[:3]


def test_text_of_a_control_token_is_no_control_token(tokenizer):
    """A model may spell one in characters: they are shown, and cut they don't turn into the token."""
    spelled = "x<|end|>y!"
    ids = ids_of(tokenizer, *spelled)
    reply, _ = play(tokenizer, ids, ["y!"])
    assert reply.text == "x<|end|>"
    assert not tokenizer.special & set(reply.ids)
    # The same where the cut goes through a token, so that the rest is encoded anew.
    ids = ids_of(tokenizer, *"<|end|", b">", "ABC")
    reply, _ = play(tokenizer, ids, ["BC"])
    assert reply.text == "<|end|>A"
    assert not tokenizer.special & set(reply.ids)


def pending(tokenizer: Tokenizer, ids: list[int]) -> bool:
    """Whether ids end inside a character that may still become whole."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(tokenizer.decode_bytes(i for i in ids if i not in tokenizer.special))
    return bool(decoder.getstate()[0])


ALPHABET = ["A", "B", "C", "D", "E", "\n", "U", "s", "e", "r", ":", " ", "<", "t", "é", "👋", "\ufffd", "J"]
STOPS = st.lists(st.text(st.sampled_from(ALPHABET), min_size=1, max_size=4), max_size=3)
relaxed = settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])


@relaxed
@given(st.data(), STOPS)
def test_any_reply(tokenizer, data, stops):
    """For any ids and stops: the text is the decode of the ids and the whole decode up to the first stop; what was
    shown is its beginning; ids wholly before the cut are the model's own."""
    likely = [*ids_of(tokenizer, *WORDS, *[c for c in ALPHABET if len(c.encode()) == 1])]
    likely += ids_of(tokenizer, *[bytes([byte]) for byte in "é👋".encode()], "<|start|>")
    ids = data.draw(st.lists(st.one_of(st.sampled_from(likely), st.integers(0, tokenizer.size + 2)), max_size=14))
    reply, shown = play(tokenizer, ids, stops)
    whole = tokenizer.decode(ids)
    matches = [(at + len(stop), at) for stop in stops if (at := whole.find(stop)) >= 0]
    expected = whole[: min(matches)[1]] if matches else whole
    assert reply.text == expected
    assert tokenizer.decode(reply.ids) == expected
    assert reply.stopped == bool(matches)
    assert not any(stop in reply.text for stop in stops)
    assert expected.startswith("".join(shown))
    if not matches:
        assert reply.ids == ids
    for count in range(len(ids)):
        before = tokenizer.decode(ids[:count])
        if not pending(tokenizer, ids[:count]) and len(before) < len(expected):
            assert reply.ids[:count] == ids[:count]


# ---------------------------------------------------------------------------------------------------------------------
# Thinking


@pytest.mark.parametrize(
    ("text", "inside", "thinking", "answer"),
    [
        ("<think>\nhm\n</think>\n\nYes.", False, "hm", "Yes."),
        ("hm\n</think>\n\nYes.", True, "hm", "Yes."),
        ("Yes.", False, "", "Yes."),
        ("<think>\nhm", False, "hm", ""),
        ("<think>\n\n</think>\n\nYes.", False, "", "Yes."),
        ("Yes <think>no</think>", False, "", "Yes <think>no</think>"),
    ],
)
@pytest.mark.parametrize("spelled", ["characters", "words"])
def test_thinking_and_answer(tokenizer, text, inside, thinking, answer, spelled):
    """Told apart as they stream, however the markers fall into tokens; the ids are all of it."""
    ids = ids_of(tokenizer, *text) if spelled == "characters" else tokenizer.encode(text)
    reply, shown = play(tokenizer, ids, template=THINKING, inside=inside)
    assert (reply.thinking, reply.text) == (thinking, answer)
    assert answer.startswith("".join(shown))
    assert reply.ids == ids
    assert tokenizer.decode(reply.ids) == text


def test_a_stop_string_inside_thinking(tokenizer):
    """It ends the reply there, too: what was thought is kept, and the ids end where it does."""
    ids = ids_of(tokenizer, *"<think>hm ABC DEF")
    reply, _ = play(tokenizer, ids, ["C D"], THINKING)
    assert (reply.thinking, reply.text) == ("hm AB", "")
    assert tokenizer.decode(reply.ids) == "<think>hm AB"


def test_markers_that_are_control_tokens(tmp_path):
    """Some vocabularies have them so, and a decode leaves control tokens out: the split must see them all the same."""
    folder = tmp_path / "t"
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Library(models.BPE({character: place for place, character in enumerate(alphabet)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(families.control("<think>", "</think>", "<|end|>"))
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    tokenizer = Tokenizer.from_folder(folder)
    ids = ids_of(tokenizer, "<think>", *"\nhm\n", "</think>", *"\nYes", "<|end|>", *".")
    reply, _ = play(tokenizer, ids, template=THINKING)
    assert (reply.thinking, reply.text, reply.ids) == ("hm", "Yes.", ids)


@relaxed
@given(st.lists(st.sampled_from(["<think>", "</think>", "hm", "\n", "Yes", " "]), max_size=9), st.booleans(), STOPS)
@example(["<think>", "\n", "hm", "\n"], False, [])
def test_any_thinking(tokenizer, words, inside, stops):
    """Streamed or at once, thinking and answer are the same, and no stop string is in either."""
    text = "".join(words)
    slow, _ = play(tokenizer, ids_of(tokenizer, *text), stops, THINKING, inside=inside)
    fast, _ = play(tokenizer, tokenizer.encode(text), stops, THINKING, inside=inside)
    assert (slow.thinking, slow.text) == (fast.thinking, fast.text)
    assert tokenizer.decode(slow.ids) == tokenizer.decode(fast.ids)
    assert not any(stop in part for stop in stops for part in (slow.thinking, slow.text))


# ---------------------------------------------------------------------------------------------------------------------
# Other vocabularies


def test_sentencepiece(tmp_path):
    """A reply's first space is its own; a stop string that the space belongs to is met."""
    family = families.load("llama2", tmp_path)
    tokenizer = family.tokenizer
    ids = tokenizer.encode(" the river is", first=False)
    reply, shown = play(tokenizer, ids)
    assert "".join(shown) == reply.text == " the river is"
    reply, _ = play(tokenizer, ids, [" is"])
    assert (reply.text, tokenizer.decode(reply.ids)) == (" the river", " the river")


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Opened:
    opened = open_model(smollm2_path, card(smollm2_path))
    opened.checkpoint.close()
    return opened


@pytest.mark.model
@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([26843, 15107, 235, 229, 665], "Hi 👋 there"),
        ([26843, 235, 665], "Hi\ufffd there"),
        ([10813, 81], "\ufffda"),
        ([26843, 15107], "Hi \ufffd"),
        ([81, 24211, 82], "a\ufffdb"),
        ([81, 24211], "a\ufffd"),
        ([26843, 2, 905], "Hi world"),
        ([10813, 2, 235, 229], "👋"),
        ([10813, 235, 118, 321, 231, 10813, 235, 119, 321, 231, 10813, 235, 117], "👨‍👩‍👧"),
        ([81, 201, 198, 82], "a\r\nb"),
        ([905], " world"),
        ([184, 250, 218, 104], "\ufffd\ufffd\ufffdx"),
        ([44, 108, 306, 79, 486, 108, 46], "<|im_end|>"),
        ([212, 75, 35, 33, 93, 455], "\x1b[31mred"),
        ([81, 1116, 198, 82], "a\n\n\nb"),
        ([85, 151, 219, 104], "e\u0301x"),
        ([2], ""),
        ([49157], ""),
        ([38466], "\ufffd\ufffd"),
    ],
)
def test_rows_of_the_real_vocabulary(smollm2: Opened, ids, text):
    """The rows that other decoders lose, delay or repeat."""
    reply, shown = play(smollm2.tokenizer, ids, template=smollm2.template)
    assert reply.text == text
    assert text.startswith("".join(shown))
    assert reply.ids == ids
