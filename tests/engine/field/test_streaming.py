"""Streams, characters and stop strings that broke elsewhere, as reported."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.engine import LLM, CompletionOutput, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence


def params(max_tokens: int = 30, **settings: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **settings)


def recite(llm: LLM, prompt: str, settings: SamplingParams) -> tuple[list[str], CompletionOutput]:
    """The deltas of a text, one for each token that showed, and its last state; both ways of reading agree."""
    items = [item.outputs[0] for item in llm.generate_stream(prompt, settings)]
    [whole] = llm.generate(prompt, settings)
    assert items[-1].text == whole.outputs[0].text == "".join(item.delta_text for item in items)
    assert items[-1].finish_reason == whole.outputs[0].finish_reason
    return [item.delta_text for item in items], items[-1]


def test_the_reciter_recites(reciter: LLM) -> None:
    texts = [reciter.generate(prompt, params(5))[0].outputs[0].text for prompt in ("ABC", "</", "5", "\n")]
    assert texts == ["DEFGH", "think", "6789", " \n \n "]


def test_a_character_of_several_tokens_never_shows_in_halves(reciter: LLM) -> None:
    """exo-explore/exo#1691, waybarrios/vllm-mlx#109, turboderp-org/exllamav3#171: U+FFFD in deltas."""
    deltas, last = recite(reciter, "🦩", params(12))
    assert last.text == "🦩🦩🦩"
    assert set(deltas) <= {"", "🦩", "🦩🦩", "🦩🦩🦩"}


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 6, 7])
def test_a_character_that_the_limit_cuts_is_one_replacement_character(reciter: LLM, max_tokens: int) -> None:
    """Blaizzy/mlx-vlm#1771: the tail was lost, or a UnicodeDecodeError."""
    _, last = recite(reciter, "🦩", params(max_tokens))
    assert last.text == "🦩" * (max_tokens // 4) + "\ufffd"
    assert len(last.token_ids) == max_tokens


def test_the_beginning_of_a_stop_string_never_leaks(reciter: LLM) -> None:
    """vllm-project/vllm#3574, SharpAI/SwiftLM#126: DEFGHIJ after an alphabet."""
    deltas, last = recite(reciter, "XYZ", params(stop="DEFGHIJ"))
    assert last.text == "ABC"
    assert not set("".join(deltas)) & set("DEFGHIJ")
    assert (last.finish_reason, last.stop_reason) == ("stop", "DEFGHIJ")


@pytest.mark.parametrize("stop", ["C", "CD", "CDEFGH"])
def test_a_stop_string_over_any_number_of_tokens_is_found(reciter: LLM, stop: str) -> None:
    """mzau/mlx-knife#68: never found, runs to the limit."""
    _, last = recite(reciter, "A", params(stop=stop))
    assert last.text == "B"
    assert len(last.token_ids) == 1 + len(stop)


def test_a_stop_string_that_is_to_be_kept_is_kept(reciter: LLM) -> None:
    _, last = recite(reciter, "A", params(stop="CD", include_stop_str_in_output=True))
    assert last.text == "BCD"


@pytest.mark.parametrize(("prompt", "stop", "text"), [(" ", " \n\n", "\n "), ("A", "DEX", "BCDE"), ("7", "9!", "89")])
def test_what_was_held_back_comes_out_at_the_end(reciter: LLM, prompt: str, stop: str, text: str) -> None:
    """ggml-org/llama.cpp#9867: the last characters were missing from the stream."""
    _, last = recite(reciter, prompt, params(2 if prompt != "A" else 4, stop=stop))
    assert last.text == text
    assert last.stop_reason is None


def test_only_a_true_prefix_of_a_stop_string_is_held_back(reciter: LLM) -> None:
    """vllm-project/vllm#45636: hold-back by number of characters tore `</think>` apart."""
    settings = params(16, stop=["a long stop string that never comes", "<|im_end|>"])
    for item in reciter.generate_stream("</think>", settings):
        made = "</think></think>"[: len(item.outputs[0].token_ids)]
        # Only "<" may begin "<|im_end|>"; all else has to be out.
        assert item.outputs[0].text == (made if item.finished else made.removesuffix("<"))


def test_an_output_that_was_handed_out_never_changes(reciter: LLM) -> None:
    """huggingface/transformers#46670: buffers were shared with objects that a reader kept."""
    kept, copies = [], []
    for item in reciter.generate_stream("ABC", params(40, logprobs=2)):
        kept.append(item)
        copies.append(copy.deepcopy(item))
    assert kept == copies
    assert _lengths([item.outputs[0] for item in kept]) == sorted(_lengths([item.outputs[0] for item in kept]))


def _lengths(outputs: Sequence[CompletionOutput]) -> list[int]:
    return [len(output.token_ids) for output in outputs]


def test_the_prompt_never_leaks_into_the_output(reciter: LLM) -> None:
    _, last = recite(reciter, "prompt 🦩 5", params())
    assert last.text == "6789"
    assert last.finish_reason == "stop"


def test_a_prompt_that_ends_within_a_character_is_gone_on_with(reciter: LLM) -> None:
    """The rest of the character alone is no character: it shows as U+FFFD, and the next one whole."""
    flamingo = reciter.get_tokenizer().encode("🦩")
    [output] = reciter.generate({"prompt_token_ids": flamingo[:2]}, params(6))
    assert output.outputs[0].token_ids == [*flamingo[2:], *flamingo]
    assert output.outputs[0].text.endswith("🦩")
