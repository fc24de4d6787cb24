"""What is drawn against the exact distribution, with rules and filters together; log-probabilities of a mixed batch."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from streamrunner.engine.params import SamplingParams
from streamrunner.engine.sampler import ScoredToken, sample_tokens, score_tokens
from streamrunner.engine.sequence import Sequence
from streamrunner.engine.token_rules import new_rules

Tensor = torch.Tensor
VOCAB, DRAWS = 14, 6_000
PROMPT, OUTPUT = [1, 2, 2], [3, 3, 4, 5]


def sequence(seed: int, **settings: Any) -> Sequence:
    params = SamplingParams(**settings)
    return Sequence(
        request_id=str(seed), token_ids=[*PROMPT, *OUTPUT], num_prompt=len(PROMPT), params=params, seed=seed, choice=0,
        max_tokens=99, rules=new_rules(params, None, (0,), (PROMPT, OUTPUT), VOCAB),
    )  # fmt: skip


def exact(logits: Tensor, params: SamplingParams) -> Tensor:
    """Bias, penalties, temperature, top-k, top-p, min-p, one after the other, in float64."""
    scores = logits.double()
    for token, bias in (params.logit_bias or {}).items():
        scores[token] += bias
    for token in {*PROMPT, *OUTPUT}:
        scores[token] *= params.repetition_penalty if scores[token] < 0 else 1 / params.repetition_penalty
    for token, count in Counter(OUTPUT).items():
        scores[token] -= params.frequency_penalty * count + params.presence_penalty
    scores /= params.temperature
    if params.top_k > 0:
        scores[scores < scores.topk(params.top_k).values[-1]] = -math.inf
    chances = scores.softmax(-1)
    order = chances.argsort(descending=True)
    before = chances[order].cumsum(0) - chances[order]
    chances[order[before >= params.top_p]] = 0
    chances[chances < params.min_p * chances.max()] = 0
    return chances / chances.sum()


@pytest.mark.parametrize(
    "settings",
    [
        {"presence_penalty": 1.5, "frequency_penalty": 0.8},
        {"repetition_penalty": 1.8, "temperature": 0.7},
        {"repetition_penalty": 0.6, "top_k": 6},
        {"frequency_penalty": -1.0, "top_p": 0.8},
        {"logit_bias": {2: 3.0, 7: -100.0}, "presence_penalty": 1.0, "min_p": 0.1, "temperature": 1.4},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "top_k": 9, "top_p": 0.9, "min_p": 0.05},
    ],
    ids=str,
)
def test_tokens_follow_the_exact_distribution(settings: dict[str, Any]) -> None:
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(5)) * 1.5
    sequences = [sequence(seed, **settings) for seed in range(DRAWS)]
    drawn = sample_tokens(logits.repeat(DRAWS, 1), sequences)
    expected = exact(logits, sequences[0].params) * DRAWS
    observed = torch.bincount(torch.tensor([one.token for one in drawn]), minlength=VOCAB).double()
    kept = expected > 0
    assert (observed[~kept] == 0).all()
    chi_square = ((observed[kept] - expected[kept]) ** 2 / expected[kept]).sum().item()
    degrees = int(kept.sum()) - 1
    # Six standard deviations: once in some million seeds, and the seeds are fixed.
    assert chi_square < degrees + 6 * math.sqrt(2 * degrees)


def test_a_mixed_batch_reports_the_models_own_probabilities_to_who_wants_them() -> None:
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(6)) * 2
    expected = logits.double().log_softmax(-1)
    batch = [
        sequence(0, logprobs=2),
        sequence(1, logprobs=0, logit_bias={9: 100.0}),
        sequence(2),
        sequence(3, logprobs=5, repetition_penalty=3.0, temperature=0.0),
    ]
    drawn = sample_tokens(logits, batch)
    assert drawn[1].token == 9
    assert drawn[2].logprobs is None
    for row, one in enumerate(drawn):
        for entry in one.logprobs or ():
            assert entry.logprob == pytest.approx(expected[row, entry.token_id].item(), abs=1e-5)
            assert entry.rank == int((expected[row] > expected[row, entry.token_id]).sum()) + 1
    assert [len(one.logprobs or ()) for one in drawn] == [3, 1, 0, 6]
    assert all(one.logprobs is None or one.logprobs[0].token_id == one.token for one in drawn)


def test_more_logprobs_than_tokens_are_all_of_them() -> None:
    logits = torch.zeros(1, 4)
    [scored] = score_tokens(logits, [ScoredToken(0, 2, 20)])
    assert [one.token_id for one in scored] == [2, 0, 1, 2, 3]


def test_rows_without_rules_keep_their_logits() -> None:
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(7))
    before = logits.clone()
    sample_tokens(logits, [sequence(0, logprobs=1), sequence(1, presence_penalty=1.0)])
    assert torch.equal(logits[0], before[0])
    assert not torch.equal(logits[1], before[1])
