from __future__ import annotations

import subprocess
import sys

import pytest

from streamrunner.engine.errors import EngineError
from streamrunner.engine.params import SamplingParams
from streamrunner.engine.synthetic import MAX_MODEL_LEN, SyntheticCore, SyntheticModel
from streamrunner.engine.synthetic_tokenizer import EOS_ID, synthetic_tokenizer

PROMPT = [72, 105]
LONG = SamplingParams(max_tokens=40, seed=1, ignore_eos=True)


def new_core(max_num_seqs: int = 4, max_model_len: int | None = None) -> SyntheticCore:
    return SyntheticCore(SyntheticModel(step_ms=0), max_num_seqs, max_model_len)


def run(core: SyntheticCore) -> dict[str, tuple[list[int], str | None]]:
    tokens: dict[str, list[int]] = {}
    reasons: dict[str, str | None] = {}
    while core.has_unfinished():
        for one in core.step().outputs:
            tokens.setdefault(one.request_id, []).extend(one.token_ids)
            reasons[one.request_id] = one.finish_reason
    return {name: (ids, reasons[name]) for name, ids in tokens.items()}


def answer(params: SamplingParams, prompt: list[int] = PROMPT, choice: int = 0) -> tuple[list[int], str | None]:
    core = new_core()
    core.add_request("a", prompt, params, choice=choice)
    return run(core)["a"]


def test_tokens_depend_on_prompt_seed_and_choice_alone() -> None:
    alone = answer(LONG)
    core = new_core(2)
    for name in "abc":
        core.add_request(name, PROMPT, LONG)
    assert set(map(str, run(core).values())) == {str(alone)}
    assert answer(LONG, [72, 106]) != alone
    assert answer(LONG, choice=1) != alone
    assert answer(SamplingParams(max_tokens=40, seed=2, ignore_eos=True)) != alone


@pytest.mark.parametrize("cut", [0, 1, 17, 39])
def test_goes_on_behind_given_tokens(cut: int) -> None:
    whole, _ = answer(LONG)
    core = new_core()
    core.add_request("a", PROMPT, LONG, generated=whole[:cut])
    assert run(core)["a"] == (whole[cut:], "length")


def test_a_whole_answer_that_is_given_ends_at_once() -> None:
    core = new_core()
    core.add_request("a", PROMPT, LONG, generated=answer(LONG)[0])
    assert run(core) == {"a": ([], "length")}


def test_answers_end_by_themselves_and_a_larger_limit_changes_no_token() -> None:
    found = [answer(SamplingParams(max_tokens=600, seed=seed)) for seed in range(20)]
    assert {reason for _, reason in found} == {"stop"}
    assert all(ids[-1] == EOS_ID for ids, _ in found)
    assert len({len(ids) for ids, _ in found}) > 10
    cut, reason = answer(SamplingParams(max_tokens=5, seed=3))
    assert (cut, reason) == (answer(SamplingParams(max_tokens=600, seed=3))[0][:5], "length")


def test_min_tokens_and_stop_tokens_are_kept() -> None:
    ids, _ = answer(SamplingParams(max_tokens=2000, min_tokens=900, seed=1))
    assert len(ids) == 901
    stopped, reason = answer(SamplingParams(max_tokens=40, seed=1, ignore_eos=True, stop_token_ids=(ids[7],)))
    assert (stopped, reason) == (ids[:8], "stop")


def test_no_more_run_at_once_than_allowed_and_an_aborted_one_never_shows_again() -> None:
    core = new_core(2)
    for name in "abcd":
        core.add_request(name, PROMPT, LONG)
    step = core.step()
    assert (len(step.outputs), step.num_running, step.num_waiting) == (2, 2, 2)
    core.abort("a")
    core.abort("d")
    core.abort("unknown")
    assert set(run(core)) == {"b", "c"}


def test_logprobs_have_the_sampled_token_first() -> None:
    core = new_core()
    core.add_request("a", PROMPT, SamplingParams(max_tokens=1, logprobs=3, seed=1, ignore_eos=True))
    (one,) = core.step().outputs
    assert one.logprobs is not None
    assert [(entry.token_id == one.token_ids[0], entry.rank) for entry in one.logprobs[0]] == [
        (True, 1), (True, 1), (False, 2), (False, 3),
    ]  # fmt: skip


def test_refuses_what_a_hash_cannot_do() -> None:
    core = new_core(max_model_len=8)
    with pytest.raises(EngineError, match="prompt_logprobs"):
        core.add_request("a", PROMPT, SamplingParams(prompt_logprobs=1))
    with pytest.raises(EngineError, match="9 tokens, max_model_len is 8"):
        core.add_request("a", list(range(9)), LONG)
    assert new_core(max_model_len=1 << 30).max_model_len == MAX_MODEL_LEN


def test_settings_stand_behind_the_name() -> None:
    assert SyntheticModel.of("synthetic") == SyntheticModel(20.0)
    assert SyntheticModel.of("synthetic?step_ms=0.5") == SyntheticModel(0.5)
    assert SyntheticModel.of("synthetic-data-model") is None
    for name, word in (("synthetic?x=1", "'x'"), ("synthetic?step_ms=-1", "step_ms"), ("synthetic?step_ms=a", "'a'")):
        with pytest.raises(EngineError, match=word):
            SyntheticModel.of(name)


def test_the_tokenizer_reads_back_every_byte_and_writes_words() -> None:
    tokenizer = synthetic_tokenizer()
    text = "Zwölf 🦊\n"
    assert len(tokenizer.encode(text)) == len(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode([256, 257, EOS_ID]) == " bababa babade"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}]) == "user: Hi\nassistant:"


def test_needs_no_torch() -> None:
    code = "import sys, streamrunner.runner.engine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0
