"""Rules against their definitions, in float64 and as transformers computes them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch

from streamrunner.engine.constraints import Constraints, compile_constraints
from streamrunner.engine.errors import EngineError
from streamrunner.engine.params import SamplingParams
from streamrunner.engine.token_rules import TokenRules, apply_rules, new_rules

if TYPE_CHECKING:
    from streamrunner.engine.tokenizer import Tokenizer

SIZE = 60
NEVER = float("-inf")


def rules(
    prompt: list[int], output: list[int], words: tuple[tuple[int, ...], ...] = (), **settings: Any
) -> TokenRules | None:
    constraints = Constraints(words) if words else None
    return new_rules(SamplingParams(**settings), constraints, (1, 999, -3), (prompt, output), SIZE)


def ruled(logits: torch.Tensor, *sequences: TokenRules | None) -> torch.Tensor:
    changed = logits.clone()
    apply_rules(changed, [(row, one) for row, one in enumerate(sequences) if one is not None])
    return changed


def random(rows: int) -> torch.Tensor:
    return torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(rows)) * 3


def test_a_request_that_asks_for_nothing_has_no_rules() -> None:
    assert rules([1], [2], temperature=0.3, top_k=5, stop_token_ids=(1,), logit_bias={}) is None


@pytest.mark.parametrize("prompt", [[], [4, 5, 5, 6], list(range(SIZE))])
@pytest.mark.parametrize("output", [[], [5, 5, 5, 9, 59], [0] * 40])
def test_penalties_against_float64(prompt: list[int], output: list[int]) -> None:
    logits = random(1)
    presence, frequency, repetition = 0.7, -0.3, 1.25
    found = ruled(
        logits,
        rules(prompt, output, presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=repetition),
    )
    expected = logits.double()[0]
    for token in {*prompt, *output}:
        expected[token] = expected[token] / repetition if expected[token] > 0 else expected[token] * repetition
    for token, count in Counter(output).items():
        expected[token] -= frequency * count + presence
    torch.testing.assert_close(found[0].double(), expected, atol=1e-5, rtol=1e-6)


def test_repetition_as_transformers_has_it() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    processor: Any = RepetitionPenaltyLogitsProcessor
    logits, tokens = random(1), [3, 3, 17, 40, 2]
    expected = processor(1.7)(torch.tensor([tokens]), logits.clone())
    torch.testing.assert_close(ruled(logits, rules(tokens[:2], tokens[2:], repetition_penalty=1.7)), expected)


def test_bad_words_as_transformers_has_them() -> None:
    from transformers import NoBadWordsLogitsProcessor

    processor: Any = NoBadWordsLogitsProcessor
    words = ((7,), (3, 4), (9, 3, 5), (40, 41))
    logits, output = random(1), [9, 3]
    expected = processor([list(word) for word in words])(torch.tensor([output]), logits.clone())
    assert torch.equal(ruled(logits, rules([], output, words)), expected)
    assert expected[0].isneginf().nonzero().flatten().tolist() == [4, 5, 7]


def test_the_prompt_does_not_begin_a_bad_word() -> None:
    assert not ruled(random(1), rules([3], [], ((3, 4),))).isneginf().any()


def test_rows_do_not_touch_each_other() -> None:
    logits = random(4)
    several = [
        rules([2, 3], [4], repetition_penalty=2.0),
        None,
        rules([2, 3], [4], frequency_penalty=1.0, logit_bias={8: 5.0, 9: -1000.0}),
        rules([], [], allowed_token_ids=[3, 59]),
    ]
    together = ruled(logits, *several)
    for row, one in enumerate(several):
        assert torch.equal(together[row], ruled(logits[row : row + 1], one)[0])
    assert torch.equal(together[1], logits[1])
    assert together[2, 8] == logits[2, 8] + 5
    assert together[2, 9] == logits[2, 9] - 100
    assert (~together[3].isneginf()).nonzero().flatten().tolist() == [3, 59]


def test_no_end_before_min_tokens() -> None:
    one = rules([5], [], min_tokens=2, stop_token_ids=(1,))
    assert one is not None
    assert ruled(random(1), one).isneginf().nonzero().tolist() == [[0, 1]]
    one.advance(5)
    one.advance(5)
    assert not ruled(random(1), one).isneginf().any()


def test_it_does_not_matter_when_tokens_came() -> None:
    settings = {"presence_penalty": 0.4, "repetition_penalty": 1.1, "min_tokens": 2}
    tokens = [3, 9, 9, 12, 3]
    grown = rules([9, 20], [], ((9, 9), (12, 3)), **settings)
    assert grown is not None
    for token in tokens:
        grown.advance(token)
    given = rules([9, 20], tokens, ((9, 9), (12, 3)), **settings)
    assert torch.equal(ruled(random(1), grown), ruled(random(1), given))


@pytest.mark.parametrize("name", ["logit_bias", "allowed_token_ids"])
def test_tokens_that_the_model_does_not_have_are_told(name: str) -> None:
    value: Any = {SIZE: 1.0} if name == "logit_bias" else [SIZE]
    with pytest.raises(EngineError, match=f"{name} names token 60, this model has 0 to 59"):
        rules([], [], **{name: value})


@pytest.mark.model
def test_a_bad_word_is_meant_with_and_without_a_blank(smollm2_tokenizer: Tokenizer) -> None:
    found = compile_constraints(SamplingParams(bad_words=[" Paris", "New York"]), smollm2_tokenizer)
    assert found is not None
    spelled = {smollm2_tokenizer.decode(list(word)) for word in found.bad_words}
    assert spelled == {"Paris", " Paris", "New York", " New York"}
