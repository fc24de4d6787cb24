"""Log-probabilities and ranks of given tokens, without a log-softmax of the whole vocabulary."""

from __future__ import annotations

import torch

from streamrunner.kernels.op import cpu_op, fake_of

Tensor = torch.Tensor


@cpu_op()
def logprobs_at(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """What the model gives some tokens, and how many it likes better.

    logits: [R, V] float32, before temperature · token_ids: [R, K] int64 in 0..V-1
    Returns logprobs [R, K] float32 and ranks [R, K] int64; 1 is the likeliest, and equal logits share a rank.
    """
    values = logits.gather(1, token_ids)
    ranks = token_ids.new_empty(token_ids.shape)
    for row in range(logits.shape[0]):
        ranks[row] = (logits[row] > values[row, :, None]).sum(1) + 1
    return values - logits.logsumexp(1, keepdim=True), ranks


@fake_of("logprobs_at")
def _(logits: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    return logits.new_empty(token_ids.shape), token_ids.new_empty(token_ids.shape)
