"""Text, stop strings and endings: live or replayed, in whatever groups the tokens come."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from streamrunner.engine.detokenize import _byte_alphabet
from streamrunner.engine.errors import EngineError
from streamrunner.engine.output import OutputDelta, OutputProcessor
from streamrunner.engine.params import SamplingParams
from streamrunner.engine.step import RequestStep, StepOutput, TokenLogprob
from streamrunner.engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

EOS = 0
WORDS = ["a", "b", "ab", "ba", "aab", "c"]  # tokens 1 …
INF = 10_000


def letters_tokenizer() -> Tokenizer:
    """Tokens that are words over few letters, so that stop strings meet and overlap often; bytes follow them."""
    alphabet = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(WORDS))
    names = ["<eos>", *WORDS, *alphabet]
    backend = tokenizers.Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>"])
    tokenizer = Tokenizer(backend)
    tokenizer.eos_token_ids = (EOS,)
    return tokenizer


LETTERS = letters_tokenizer()
BYTE_TOKENS = [LETTERS.token_id(name) or 0 for name in _byte_alphabet()]
FLAMINGO = [
    LETTERS.token_id(name) or 0
    for name in pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str("🦩")[0][0]
]


def step_of(*outputs: RequestStep) -> StepOutput:
    return StepOutput(
        outputs=outputs, num_running=1, num_waiting=0, num_batched_tokens=1, num_prompt_tokens=0, num_cached_tokens=0,
        kv_cache_usage=0.0, num_preemptions=0, step_ms=0.0,
    )  # fmt: skip


def tokens(*token_ids: int, finish: str | None = None, why: int | None = None, **fields: Any) -> StepOutput:
    return step_of(RequestStep("r", token_ids, fields.get("logprobs"), finish, why, fields.get("error")))


def live(groups: Sequence[Sequence[int]], params: SamplingParams, tokenizer: Tokenizer = LETTERS) -> list[OutputDelta]:
    """One sequence through a processor of its own."""
    processor = OutputProcessor(tokenizer)
    processor.add("r", params)
    return [delta for group in groups for delta in processor.process(tokens(*group)).deltas]


def whole(found: Sequence[OutputDelta]) -> tuple[tuple[int, ...], str, str | None, int | str | None]:
    token_ids = tuple(token_id for delta in found for token_id in delta.token_ids)
    last = found[-1] if found else OutputDelta("r", (), "", None, None, None, None)
    return token_ids, "".join(delta.text for delta in found), last.finish_reason, last.stop_reason


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": INF, **fields})


# ── the rules, spelled out the slow way ──────────────────────────────────────────────────────────────────────────────


def by_hand(
    token_ids: Sequence[int], rules: SamplingParams
) -> tuple[tuple[int, ...], str, str | None, int | str | None]:
    text = ""
    for count, token_id in enumerate(token_ids, 1):
        kept = tuple(token_ids[:count])
        if count > rules.min_tokens and token_id in rules.stop_token_ids:
            return kept, text, "stop", token_id
        if count > rules.min_tokens and token_id == EOS and not rules.ignore_eos:
            return kept, text, "stop", None
        for character in LETTERS.decode([token_id]):
            text += character
            matches = [stop for stop in rules.stop if text.endswith(stop)]
            if matches and count > rules.min_tokens:
                stop = max(matches, key=len)
                end = len(text) if rules.include_stop_str_in_output else len(text) - len(stop)
                return kept, text[:end], "stop", stop
        if count == rules.max_tokens:
            return kept, text, "length", None
    return tuple(token_ids), text, None, None


rules = st.builds(
    lambda stop, stop_ids, low, extra, **rest: params(
        stop=tuple(stop), stop_token_ids=tuple(stop_ids), min_tokens=low, max_tokens=low + extra, **rest
    ),
    stop=st.lists(st.text("abc", min_size=1, max_size=5), max_size=3),
    stop_ids=st.lists(st.integers(1, len(WORDS)), max_size=1),
    low=st.integers(0, 6),
    extra=st.integers(1, 30),
    ignore_eos=st.booleans(),
    include_stop_str_in_output=st.booleans(),
)
sequences = st.lists(st.integers(0, len(WORDS)), max_size=25)


def groups_of(token_ids: Sequence[int], edges: Sequence[int]) -> list[Sequence[int]]:
    cuts = [0, *sorted(edges), len(token_ids)]
    return [token_ids[begin:end] for begin, end in pairwise(cuts)]


@given(token_ids=sequences, rules=rules, edges=st.lists(st.integers(0, 25), max_size=5))
@settings(deadline=None, max_examples=400)
def test_live_text_follows_the_rules_in_any_grouping(
    token_ids: list[int], rules: SamplingParams, edges: list[int]
) -> None:
    got = whole(live(groups_of(token_ids, edges), rules))
    expected = by_hand(token_ids, rules)
    if expected[2] is None:
        # Not ended: what is not out yet is a true prefix of a stop string, and nothing else is held back.
        held = expected[1].removeprefix(got[1])
        assert expected[1] == got[1] + held
        assert not held or any(stop.startswith(held) and stop != held for stop in rules.stop)
        assert got[0] == expected[0]
    else:
        assert got == expected


@given(token_ids=sequences, rules=rules, at=st.integers(0, 25), edges=st.lists(st.integers(0, 25), max_size=5))
@settings(deadline=None, max_examples=400)
def test_replay_goes_on_as_if_nothing_had_happened(
    token_ids: list[int], rules: SamplingParams, at: int, edges: list[int]
) -> None:
    replayed = OutputProcessor(LETTERS)
    replayed.add("r", rules)
    found = [replayed.replay("r", token_ids[:at])]
    for group in groups_of(token_ids[at:], edges):
        found += replayed.process(tokens(*group)).deltas
    assert whole(found) == whole(live([[token_id] for token_id in token_ids], rules)) or not token_ids


@given(data=st.binary(max_size=12), edges=st.lists(st.integers(0, 12), max_size=4))
@settings(deadline=None)
def test_without_stops_the_text_is_what_decode_says(data: bytes, edges: list[int]) -> None:
    token_ids = [1 + byte % (LETTERS.vocab_size - 1) for byte in data]
    processor = OutputProcessor(LETTERS)
    processor.add("r", params())
    steps = [*(tokens(*group) for group in groups_of(token_ids, edges)), tokens(EOS, finish="stop")]
    found = [delta for step in steps for delta in processor.process(step).deltas]
    assert whole(found) == ((*token_ids, EOS), LETTERS.decode(token_ids), "stop", None)


_CHARACTERS = ["a", "é", "日", "🦩", "🙂"]
# Bytes that meet: whole characters, characters that are cut, and stray bytes.
_pieces = st.one_of(
    st.sampled_from([character.encode() for character in _CHARACTERS]),
    st.sampled_from([character.encode()[:-1] for character in _CHARACTERS[1:]]),
    st.binary(min_size=1, max_size=2),
)
_byte_stops = st.lists(st.text([*_CHARACTERS, "\ufffd"], min_size=1, max_size=3), min_size=1, max_size=3)


@given(
    pieces=st.lists(_pieces, max_size=12),
    stops=_byte_stops,
    edges=st.lists(st.integers(0, 40), max_size=5),
    keep=st.booleans(),
)
@settings(deadline=None, max_examples=300)
def test_stop_strings_in_any_bytes_cut_where_the_decoded_text_has_them(
    pieces: list[bytes], stops: list[str], edges: list[int], keep: bool
) -> None:
    token_ids = [BYTE_TOKENS[byte] for byte in b"".join(pieces)]
    rules = params(stop=tuple(stops), include_stop_str_in_output=keep)
    processor = OutputProcessor(LETTERS)
    processor.add("r", rules)
    steps = [*(tokens(*group) for group in groups_of(token_ids, edges)), tokens(EOS, finish="stop")]
    found = [delta for step in steps for delta in processor.process(step).deltas]
    text = LETTERS.decode(token_ids)
    ends = [(text.index(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    _, made, reason, why = whole(found)
    assert reason == "stop"
    if ends:
        end, _, stop = min(ends)
        assert (made, why) == (text[: end if keep else end - len(stop)], stop)
    else:
        assert (made, why) == (text, None)


# ── endings ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stop_string_over_two_tokens_drops_overshoot_and_asks_to_abort() -> None:
    processor = OutputProcessor(LETTERS)
    processor.add("r", params(stop=("bc",)))
    first = processor.process(tokens(1, 2))
    assert [delta.text for delta in first.deltas] == ["a"]
    assert first.aborts == ()
    second = processor.process(tokens(6, 1, 1))
    (delta,) = second.deltas
    assert (delta.token_ids, delta.text, delta.finish_reason, delta.stop_reason) == ((6,), "", "stop", "bc")
    assert second.aborts == ("r",)
    assert processor.process(tokens(1)) == ((), ()), "steps that were under way when it ended are passed over"


def test_a_sequence_the_engine_has_ended_is_not_aborted() -> None:
    processor = OutputProcessor(LETTERS)
    processor.add("r", params(stop=("b",), max_tokens=2))
    processed = processor.process(tokens(1, 2, finish="length"))
    assert processed.aborts == ()
    assert processed.deltas[0].finish_reason == "stop"


def test_text_held_back_comes_out_when_the_sequence_ends() -> None:
    assert whole(live([[1, 2, EOS]], params(stop=("bbb",)))) == ((1, 2, EOS), "ab", "stop", None)
    processor = OutputProcessor(LETTERS)
    processor.add("r", params(stop=("bbb",)))
    processor.process(tokens(1, 2))
    (delta,) = processor.process(tokens(finish="abort")).deltas
    assert (delta.text, delta.finish_reason) == ("b", "abort")


def test_tokens_are_delivered_at_once_while_their_text_waits() -> None:
    found = live([[token_id] for token_id in FLAMINGO], params())
    assert [delta.token_ids for delta in found] == [(token_id,) for token_id in FLAMINGO]
    assert [delta.text for delta in found] == ["", "", "", "🦩"]


def test_a_character_cut_by_max_tokens_is_one_replacement_character() -> None:
    assert whole(live([FLAMINGO], params(max_tokens=3)))[1:] == ("\ufffd", "length", None)


def test_an_ordinary_token_that_ends_a_sequence_is_not_in_its_text() -> None:
    assert whole(live([[1, 6]], params(stop_token_ids=(6,)))) == ((1, 6), "a", "stop", 6)


def test_end_of_text_among_the_first_min_tokens_does_not_end_it() -> None:
    assert whole(live([[EOS, 1, EOS]], params(min_tokens=2))) == ((EOS, 1, EOS), "a", "stop", None)


def test_a_stop_string_may_begin_within_min_tokens_but_must_end_behind_them() -> None:
    assert whole(live([[1, 2], [6]], params(stop=("bc", "ab"), min_tokens=2))) == ((1, 2, 6), "a", "stop", "bc")


def test_a_newline_in_byte_tokens_stops_and_the_token_that_showed_it_is_dropped(llama_tokenizer: Tokenizer) -> None:
    hello, newline = llama_tokenizer.token_id("▁Hello"), llama_tokenizer.token_id("<0x0A>")
    assert hello is not None
    assert newline is not None
    stop = params(stop=("\n",))
    assert whole(live([[hello, newline], [hello]], stop, llama_tokenizer)) == ((hello, newline), "Hello", "stop", "\n")
    assert whole(live([[hello, newline], [2]], stop, llama_tokenizer)) == ((hello, newline), "Hello", "stop", "\n")


def test_logprobs_are_cut_with_their_tokens() -> None:
    processor = OutputProcessor(LETTERS)
    processor.add("r", params(stop=("b",)))
    logprobs = tuple((TokenLogprob(token_id, -0.5, 1),) for token_id in (1, 2, 1))
    (delta,) = processor.process(tokens(1, 2, 1, logprobs=logprobs)).deltas
    assert delta.token_ids == (1, 2)
    assert delta.logprobs == logprobs[:2]


def test_an_engine_error_reaches_its_own_request_only() -> None:
    processor = OutputProcessor(LETTERS)
    processor.add("r", params())
    processor.add("other", params())
    error = EngineError("nan_logits", "no finite logits")
    processed = processor.process(
        step_of(
            RequestStep("r", (), None, "error", None, error),
            RequestStep("other", (1,), None, None, None, None),
            RequestStep("unknown", (1,), None, None, None, None),
        )
    )
    assert [(delta.request_id, delta.finish_reason, delta.error) for delta in processed.deltas] == [
        ("r", "error", error),
        ("other", None, None),
    ]


def test_a_live_name_cannot_be_taken_and_a_forgotten_one_can() -> None:
    processor = OutputProcessor(LETTERS)
    processor.add("r", params())
    with pytest.raises(EngineError) as caught:
        processor.add("r", params())
    assert caught.value.code == "duplicate_request"
    processor.forget("r")
    processor.forget("r")
    processor.add("r", params())
    assert processor.process(tokens(1)).deltas[0].text == "a"


# ── cost ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_long_outputs_with_long_stop_strings_cost_no_more_per_token() -> None:
    """Text that keeps beginning a stop string is where a search that starts anew at every token grows."""
    rules = params(stop=("a" * 2_000 + "c", "ab" * 1_000 + "c"))
    live([[1, 1, 2] * 300], rules)
    short, long = (cost([[1]] * times, rules) for times in (3_000, 30_000))
    assert long < 40 * short


def cost(groups: Sequence[Sequence[int]], rules: SamplingParams) -> float:
    began = time.process_time()
    live(groups, rules)
    return time.process_time() - began
