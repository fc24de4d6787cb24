"""Sampling rules and scores as a caller of LLM meets them."""

from __future__ import annotations

import pytest

from streamrunner.engine import LLM, SamplingParams


def test_a_prompt_can_be_scored_without_making_text(llm: LLM) -> None:
    prompts = ["a", "the cat", "x" * 256]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=0, prompt_logprobs=2))
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.error is None
        [choice] = output.outputs
        assert (choice.text, choice.token_ids, choice.finish_reason) == ("", [], "length")
        scores = output.prompt_logprobs
        assert scores is not None
        assert scores[0] is None
        assert len(scores) == len(output.prompt_token_ids) == len(prompt)
        for token, place in zip(output.prompt_token_ids[1:], scores[1:], strict=True):
            assert place is not None
            assert next(iter(place)) == token
            assert 2 <= len(place) <= 3


def test_all_choices_share_one_scoring_of_the_prompt(llm: LLM) -> None:
    params = SamplingParams(n=3, max_tokens=4, prompt_logprobs=0, seed=1, ignore_eos=True)
    [output] = llm.generate("hello there", params)
    [alone] = llm.generate("hello there", SamplingParams(max_tokens=0, prompt_logprobs=0))
    assert [len(choice.token_ids) for choice in output.outputs] == [4, 4, 4]
    assert output.prompt_logprobs == alone.prompt_logprobs


def test_bad_words_never_come_and_a_bias_decides(llm: LLM) -> None:
    greedy = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}
    token = llm.get_tokenizer().encode("q")[0]
    [biased] = llm.generate("hello", SamplingParams(**greedy, logit_bias={token: 100.0}))
    assert biased.outputs[0].text == "q" * 12
    [other] = llm.generate("hello", SamplingParams(**greedy, logit_bias={token: 100.0}, bad_words=["qq"]))
    assert "qq" not in other.outputs[0].text
    assert other.outputs[0].text.startswith("q")


@pytest.mark.parametrize(
    ("settings", "name"), [({"logit_bias": {10**6: 1.0}}, "logit_bias"), ({"allowed_token_ids": [10**6]}, "allowed")]
)
def test_a_token_that_the_model_does_not_have_fails_its_prompt_alone(
    llm: LLM, settings: dict[str, object], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    params = [SamplingParams(**settings), SamplingParams(max_tokens=2)]  # type: ignore[arg-type]
    failed, fine = llm.generate(["a", "b"], params)
    assert failed.error is not None
    assert failed.error.code == "invalid_params"
    assert name in failed.error.message
    assert fine.error is None
    assert caplog.text


def test_without_rules_or_with_ones_that_change_nothing_the_text_is_the_same(llm: LLM) -> None:
    params = {"temperature": 0.8, "max_tokens": 20, "seed": 5, "ignore_eos": True}
    [plain] = llm.generate("once", SamplingParams(**params))
    [ruled] = llm.generate("once", SamplingParams(**params, logit_bias={7: 0.0}, bad_words=["never in here"]))
    assert plain.outputs == ruled.outputs
