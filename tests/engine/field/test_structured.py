"""Texts of a given form, where other engines gave up on the form without a word."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.engine import SamplingParams

if TYPE_CHECKING:
    from streamrunner.engine import LLM, RequestOutput


def formed(llm: LLM, max_tokens: int = 120, **form: Any) -> RequestOutput:
    """One text of this form between two that have none."""
    free = SamplingParams(max_tokens=5, ignore_eos=True)
    params = SamplingParams(max_tokens=max_tokens, seed=3, structured_outputs=form)  # type: ignore[arg-type]
    before, output, after = llm.generate(["free", "formed", "free"], [free, params, free])
    assert (before.error, after.error) == (None, None)
    return output


REFUSED = {
    "multipleOf": {"type": "array", "items": {"type": "number", "multipleOf": 0.3}, "uniqueItems": True},
    "uniqueItems": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    "contains": {"type": "array", "contains": {"const": 1}},
    "not": {"not": {"type": "string"}},
    "propertyNames": {"type": "object", "propertyNames": {"maxLength": 2}},
}


@pytest.mark.parametrize("keyword", REFUSED)
def test_a_keyword_that_cannot_be_enforced_is_refused_by_name(llm: LLM, keyword: str) -> None:
    """sgl-project/sglang#28804, guidance-ai/llguidance#265: silently not enforced, or blanks without end."""
    output = formed(llm, json=REFUSED[keyword])
    assert output.error is not None
    assert output.error.code == "invalid_params"
    assert any(name in str(output.error) for name in REFUSED[keyword])
    assert output.outputs[0].finish_reason == "error"


def test_a_keyword_that_can_be_enforced_is(llm: LLM) -> None:
    """The same reports: patternProperties, and multipleOf of integers."""
    values = {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 700}
    names = {"patternProperties": {"^n[0-9]$": values}, "additionalProperties": False}
    schema = {"type": "object", **names, "minProperties": 1, "maxProperties": 2}
    output = formed(llm, json=schema, disable_any_whitespace=True)
    assert output.error is None
    found = json.loads(output.outputs[0].text)
    assert found
    assert all(re.fullmatch("n[0-9]", name) and value % 7 == 0 for name, value in found.items())


@pytest.mark.parametrize("pattern", ["^\\d+$", "^\\d{2,4}$", "^[a-f]{1,5}-\\d$"])
def test_an_anchored_pattern_is_understood(llm: LLM, pattern: str) -> None:
    """ggml-org/llama.cpp#27580: an opaque error for `^\\d+$`."""
    output = formed(llm, json={"type": "string", "pattern": pattern})
    assert output.error is None
    # Digits may go on to the limit; then the closing quote is missing, and nothing else.
    assert re.fullmatch(pattern, output.outputs[0].text.strip('"'))


@pytest.mark.parametrize("regex", ["[", "(?=a)b", "a{2,1}"])
def test_a_form_that_is_none_fails_its_prompt_alone(llm: LLM, regex: str) -> None:
    output = formed(llm, regex=regex)
    assert output.error is not None
    assert output.error.code == "invalid_params"


def test_log_probabilities_under_a_form_are_numbers_json_knows(llm: LLM) -> None:
    """vllm-project/vllm#10234, madroidmaq/mlx-omni-server#56: -inf for all that the grammar forbids."""
    params = SamplingParams(max_tokens=20, logprobs=20, structured_outputs={"choice": ["yes", "no"]})  # type: ignore[arg-type]
    [output] = llm.generate("x", params)
    assert output.outputs[0].text in ("yes", "no")
    shown = [[one.logprob for one in place.values()] for place in output.outputs[0].logprobs or ()]
    assert shown
    json.dumps(shown, allow_nan=False)
