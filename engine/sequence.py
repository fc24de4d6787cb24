"""One sequence in the engine: one choice of a request, from admission to its last token.

token_ids   [ prompt ........ | generated before | new ... ]
            [ computed (in the cache) ....... ) pending )
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streamrunner.engine.block_pool import ROOT_HASH, block_hash

if TYPE_CHECKING:
    from streamrunner.engine.params import SamplingParams
    from streamrunner.engine.step import TokenLogprob
    from streamrunner.engine.token_rules import TokenRules


@dataclass(slots=True, eq=False)
class Sequence:
    """State that only the scheduler and the core change.

    num_computed: tokens whose K and V are in the cache (or will be after this step).
    blocks: pages in order; they cover at least num_computed tokens.
    scores: log-probabilities of prompt tokens from the second on, as far as they are known; None if nobody wants them.
    """

    request_id: str
    token_ids: list[int]
    num_prompt: int
    params: SamplingParams
    seed: int
    choice: int
    max_tokens: int
    num_computed: int = 0
    num_cached: int = 0
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    rules: TokenRules | None = None
    scores: list[tuple[TokenLogprob, ...]] | None = None

    @property
    def num_output(self) -> int:
        """Tokens generated so far, earlier runs included."""
        return len(self.token_ids) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Tokens to compute before the next one can be sampled; 1 while decoding."""
        return len(self.token_ids) - self.num_computed

    @property
    def is_full(self) -> bool:
        """Whether it has all the output it may have."""
        return self.num_output >= self.max_tokens

    @property
    def num_unscored(self) -> int:
        """Prompt tokens whose log-probabilities are wanted and not known yet."""
        return 0 if self.scores is None else self.num_prompt - 1 - len(self.scores)

    def append(self, token: int) -> None:
        """One more token of output."""
        self.token_ids.append(token)
        if self.rules is not None:
            self.rules.advance(token)

    def full_block_hashes(self, block_size: int) -> list[bytes]:
        """Names of all full pages of the tokens known now."""
        while (len(self.hashes) + 1) * block_size <= len(self.token_ids):
            start = len(self.hashes) * block_size
            parent = self.hashes[-1] if self.hashes else ROOT_HASH
            self.hashes.append(block_hash(parent, self.token_ids[start : start + block_size]))
        return self.hashes
