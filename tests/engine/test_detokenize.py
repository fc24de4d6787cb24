"""Deltas add up to what decoding everything at once gives, whatever the tokens and the kind of tokeniser."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from streamrunner.engine.detokenize import detokenizers
from streamrunner.engine.errors import EngineError
from streamrunner.engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

REPLACEMENT = "\ufffd"
FIRST_BYTE = 3  # of the small tokenisers
EMOJI = "🙂".encode()
shared = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def deltas(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    text = detokenizers(tokenizer)()
    return [*(text.add(token_id) for token_id in token_ids), text.flush()]


def in_bytes(text: str | bytes) -> list[int]:
    data = text.encode() if isinstance(text, str) else text
    return [FIRST_BYTE + byte for byte in data]


@pytest.fixture(scope="session")
def cut_tokens(smollm2_tokenizer: Tokenizer) -> list[int]:
    """All tokens of the real vocabulary that are no whole character."""
    every = range(smollm2_tokenizer.vocab_size)
    return [token_id for token_id in every if REPLACEMENT in smollm2_tokenizer.decode([token_id])]


# Mixes that meet: any token (ids that none has, too), cut characters and stray bytes, special tokens.
mixes = st.lists(
    st.one_of(
        st.tuples(st.just("any"), st.integers(0, 60_000)),
        st.tuples(st.just("bytes"), st.integers(0, 10_000)),
        st.tuples(st.just("special"), st.integers(0, 2)),
    ),
    max_size=60,
)


@pytest.mark.model
@given(mix=mixes)
@shared
def test_any_tokens_of_the_real_tokenizer(
    smollm2_tokenizer: Tokenizer, cut_tokens: list[int], mix: list[tuple[str, int]]
) -> None:
    token_ids = [cut_tokens[number % len(cut_tokens)] if kind == "bytes" else number for kind, number in mix]
    assert "".join(deltas(smollm2_tokenizer, token_ids)) == smollm2_tokenizer.decode(token_ids)


@pytest.mark.model
@given(text=st.text(max_size=80))
@shared
def test_any_text_of_the_real_tokenizer_comes_back(smollm2_tokenizer: Tokenizer, text: str) -> None:
    token_ids = smollm2_tokenizer.encode(text)
    parts = deltas(smollm2_tokenizer, token_ids)
    assert "".join(parts) == smollm2_tokenizer.decode(token_ids)
    assert parts[-1] == "" or REPLACEMENT in smollm2_tokenizer.decode(token_ids)


@given(token_ids=st.lists(st.one_of(st.integers(0, 270), st.sampled_from(in_bytes("🙂日 \n"))), max_size=40))
@shared
def test_any_tokens_of_piecewise_tokenizers(piece_tokenizer: Tokenizer, token_ids: list[int]) -> None:
    assert "".join(deltas(piece_tokenizer, token_ids)) == piece_tokenizer.decode(token_ids)


@pytest.mark.model
def test_an_emoji_shows_whole_with_its_last_byte(smollm2_tokenizer: Tokenizer) -> None:
    token_ids = smollm2_tokenizer.encode("🦩")
    assert len(token_ids) > 1
    assert deltas(smollm2_tokenizer, token_ids) == [""] * (len(token_ids) - 1) + ["🦩", ""]


@pytest.mark.model
def test_a_character_cut_at_the_end_is_one_replacement_character(smollm2_tokenizer: Tokenizer) -> None:
    token_ids = smollm2_tokenizer.encode("ok 🦩")
    assert deltas(smollm2_tokenizer, token_ids[:-1])[-1] == REPLACEMENT


@pytest.mark.model
def test_a_character_is_whole_also_behind_a_dozen_stray_bytes(smollm2_tokenizer: Tokenizer) -> None:
    flamingo = smollm2_tokenizer.encode("🦩")
    stray = [flamingo[-1]] * 11
    assert "".join(deltas(smollm2_tokenizer, stray + flamingo)).endswith("🦩")


@pytest.mark.model
def test_special_tokens_do_not_show_even_inside_a_character(smollm2_tokenizer: Tokenizer) -> None:
    first, *rest = smollm2_tokenizer.encode("🦩")
    assert "".join(deltas(smollm2_tokenizer, [1, first, 2, *rest, 0])) == "🦩"


def test_the_blank_before_the_first_word_goes_and_the_others_stay(llama_tokenizer: Tokenizer) -> None:
    hello, world = llama_tokenizer.token_id("▁Hello"), llama_tokenizer.token_id("▁world")
    assert hello is not None
    assert world is not None
    assert deltas(llama_tokenizer, [1, hello, world, world]) == ["", "Hello", " world", " world", ""]


def test_a_run_of_byte_tokens_waits_for_its_end(llama_tokenizer: Tokenizer) -> None:
    hello = llama_tokenizer.token_id("Hello")
    assert hello is not None
    assert deltas(llama_tokenizer, [*in_bytes(EMOJI), hello]) == ["", "", "", "", "🙂Hello", ""]


def test_one_bad_byte_spoils_its_run_as_in_decode(llama_tokenizer: Tokenizer) -> None:
    assert deltas(llama_tokenizer, in_bytes(EMOJI + b"\xff"))[-1] == REPLACEMENT * 5


def test_settled_text_belongs_to_the_tokens_before(llama_tokenizer: Tokenizer) -> None:
    hello = llama_tokenizer.token_id("▁Hello")
    assert hello is not None
    text = detokenizers(llama_tokenizer)()
    text.add(in_bytes("\n")[0])
    assert text.settle(2) == "", "a special token does not end the run"
    assert text.settle(hello) == "\n"
    assert text.add(hello) == " Hello"


def test_a_tokenizer_without_decoder_puts_blanks_between_tokens(llama_tokenizer: Tokenizer) -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    assert deltas(Tokenizer(backend), [0, 1, 0]) == ["a", " b", " a", ""]


@pytest.mark.parametrize("decoder", [decoders.BPEDecoder(), decoders.CTC(), decoders.Strip(" ", 2, 0)])
def test_a_decoder_that_cannot_go_token_by_token_is_named(decoder: decoders.Decoder) -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    backend.decoder = decoder
    with pytest.raises(EngineError, match=r"decodes with (BPEDecoder|CTC|Strip)") as caught:
        detokenizers(Tokenizer(backend))
    assert caught.value.code == "model_unsupported"


@pytest.mark.model
def test_cost_grows_with_the_tokens_and_no_faster(smollm2_tokenizer: Tokenizer) -> None:
    """Ten times the tokens, ten times the work: timed on the process's own clock, with a wide margin."""
    token_ids = smollm2_tokenizer.encode("The flamingo 🦩 stands on one leg. " * 200)
    deltas(smollm2_tokenizer, token_ids)
    short, long = (cost(smollm2_tokenizer, token_ids * times) for times in (4, 40))
    assert long < 40 * short


def cost(tokenizer: Tokenizer, token_ids: Sequence[int]) -> float:
    began = time.process_time()
    deltas(tokenizer, token_ids)
    return time.process_time() - began
