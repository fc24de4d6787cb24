from __future__ import annotations

import pickle
from typing import Any

import pytest

from streamrunner.engine.errors import EngineError
from streamrunner.engine.params import SamplingParams

NAN, INF = float("nan"), float("inf")


def test_the_defaults_are_vllms() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert (params.max_tokens, params.min_tokens, params.stop, params.seed, params.logprobs) == (16, 0, (), None, None)


def test_a_stop_string_and_lists_become_tuples() -> None:
    assert SamplingParams(stop="\n").stop == ("\n",)  # type: ignore[arg-type]
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]
    assert SamplingParams(stop_token_ids=[1, 2]).stop_token_ids == (1, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0}, {"temperature": 100.0}, {"top_p": 1}, {"top_p": 1e-9}, {"top_k": -1}, {"top_k": 0},
        {"min_p": 1.0}, {"n": 128}, {"max_tokens": 1}, {"max_tokens": None, "min_tokens": 10**6}, {"logprobs": 20},
        {"logprobs": 0}, {"max_tokens": 0, "prompt_logprobs": 0}, {"repetition_penalty": 100}, {"presence_penalty": -2},
        {"seed": -(1 << 63)}, {"seed": (1 << 63) - 1}, {"min_tokens": 16}, {"stop": ("x",) * 16},
    ],
)  # fmt: skip
def test_the_ends_of_every_range_are_allowed(settings: dict[str, Any]) -> None:
    SamplingParams(**settings)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("n", 0, "n is 0, it must be between 1 and 128"),
        ("n", 129, "128"),
        ("temperature", -0.1, "temperature is -0.1, it must be between 0.0 and 100.0"),
        ("temperature", NAN, "nan"),
        ("temperature", INF, "inf"),
        ("temperature", 10**400, "between 0.0 and 100.0"),
        ("top_p", 0, "above 0 and at most 1"),
        ("top_p", 1.01, "above 0 and at most 1"),
        ("top_p", NAN, "nan"),
        ("top_k", -2, "-1"),
        ("top_k", 10**400, "between -1"),
        ("min_p", 1.5, "min_p is 1.5"),
        ("min_p", NAN, "nan"),
        ("max_tokens", 0, "at least 1, unless prompt_logprobs"),
        ("presence_penalty", 2.1, "between -2.0 and 2.0"),
        ("frequency_penalty", NAN, "nan"),
        ("repetition_penalty", 0, "above 0 and at most 100"),
        ("prompt_logprobs", 21, "between 0 and 20"),
        ("bad_words", ("x", "  "), "no blank"),
        ("logit_bias", {"x": 1}, "keys are token ids"),
        ("logit_bias", {3: "1"}, "a number for each token id"),
        ("logit_bias", [3], "an object of token ids"),
        ("allowed_token_ids", (), "at least one token id"),
        ("allowed_token_ids", (3, -1), "whole numbers from 0"),
        ("min_tokens", -1, "min_tokens is -1"),
        ("min_tokens", 17, "at most max_tokens (16)"),
        ("logprobs", -1, "between 0 and 20"),
        ("logprobs", 21, "between 0 and 20"),
        ("seed", 1 << 63, "signed 64-bit"),
        ("stop", ("",), "non-empty"),
        ("stop", ("x",) * 17, "17 strings"),
    ],
)
def test_a_value_out_of_range_names_the_parameter_and_what_is_allowed(name: str, value: Any, says: str) -> None:
    with pytest.raises(EngineError) as caught:
        SamplingParams(**{name: value})
    assert (caught.value.code, caught.value.param) == ("invalid_params", name)
    assert says in caught.value.message


def test_a_bias_may_name_tokens_in_text_as_json_does_and_is_clamped() -> None:
    params = SamplingParams(logit_bias={"17": 1, 3: -1000.0})  # type: ignore[dict-item]
    assert params.logit_bias == {17: 1.0, 3: -100.0}
    assert hash(params) == hash(SamplingParams())


def test_the_error_crosses_processes_whole() -> None:
    with pytest.raises(EngineError) as caught:
        SamplingParams(n=0)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.code, again.message, again.param) == (caught.value.code, caught.value.message, "n")
