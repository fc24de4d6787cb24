"""Texts of a given form: what is drawn always has it, what cannot be enforced is refused by name."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from streamrunner.engine.config import EngineConfig
from streamrunner.engine.constraints import compile_constraints
from streamrunner.engine.core import EngineCore
from streamrunner.engine.errors import EngineError
from streamrunner.engine.params import SamplingParams
from streamrunner.engine.structured_params import StructuredOutputsParams
from streamrunner.engine.tokenizer import Tokenizer
from streamrunner.engine.weights import load_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from streamrunner.engine.llm import LLM

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
COMPACT = {"json": PERSON, "disable_any_whitespace": True}
GBNF = 'root ::= digit "+" digit\ndigit ::= [0-9]'


def is_person(text: str) -> bool:
    found = json.loads(text)
    return (
        list(found) == ["name", "age", "tags"]
        and len(found["name"]) <= 8
        and 0 <= found["age"] <= 130
        and len(found["tags"]) <= 2
        and set(found["tags"]) <= {"a", "b"}
    )


FORMS: list[tuple[dict[str, Any], Callable[[str], object]]] = [
    (COMPACT, is_person),
    ({"json": json.dumps(PERSON), "whitespace_pattern": " ?"}, is_person),
    ({"regex": "[0-9]{3}-[a-f]{2,4}"}, re.compile("[0-9]{3}-[a-f]{2,4}").fullmatch),
    ({"choice": ["yes", 'no "quoted"\n', "né\\e"]}, lambda text: text in ("yes", 'no "quoted"\n', "né\\e")),
    ({"grammar": GBNF}, re.compile(r"[0-9]\+[0-9]").fullmatch),
    ({"grammar": 'start: "a" | "b" /[0-9]+/ ";"'}, re.compile("a|b[0-9]+;").fullmatch),
]


def params(form: dict[str, Any], **settings: Any) -> SamplingParams:
    return SamplingParams(structured_outputs=StructuredOutputsParams(**form), **{"max_tokens": 120, **settings})


@pytest.mark.parametrize(("form", "has_form"), FORMS)
def test_every_text_has_its_form(new_llm: Callable[..., LLM], form: Any, has_form: Callable[[str], object]) -> None:
    [output] = new_llm().generate("ab", params(form, n=6, seed=3, temperature=1.5))
    assert output.error is None
    for choice in output.outputs:
        assert has_form(choice.text), choice.text
        assert choice.finish_reason == "stop"


def test_a_json_object_is_one_and_ends_whatever_ignores_the_end(new_llm: Callable[..., LLM]) -> None:
    form = {"json_object": True, "disable_any_whitespace": True}
    given = params(form, seed=1, n=4, max_tokens=200, ignore_eos=True, logit_bias={92: 12, 1: 6})  # `}` and `"`
    [output] = new_llm().generate("ab", given)
    ended = [choice.text for choice in output.outputs if choice.finish_reason == "stop"]
    assert ended
    assert all(isinstance(json.loads(text), dict) for text in ended)


def admits(form: dict[str, Any], text: str, folder: Path) -> bool:
    """Whether a form can be said as this text, and may end there."""
    tokenizer = Tokenizer.load(folder)
    state = tokenizer.grammars.compile(StructuredOutputsParams(**form)).start(258)
    for token in [*tokenizer.encode(text), *tokenizer.eos_token_ids]:
        if state.is_complete:
            return token in tokenizer.eos_token_ids
        state.advance(token)
    return state.fault is None


ODD = [
    "a",
    "ab",
    "a|b",
    "(x)",
    "/y/",
    "\x00\x7f",
    "tab\t\r\n",
    "\\d",
    "\u00e9\U0001f600",
    "[^-]&&~#",
    "\u2028",
    '"q"',
    "\\<",
]


@pytest.mark.parametrize("text", ODD)
def test_a_choice_may_be_any_text(tiny_model: Path, text: str) -> None:
    assert admits({"choice": ODD}, text, tiny_model)
    assert not admits({"choice": [one for one in ODD if one != text]}, text, tiny_model)


def test_there_may_be_thousands_of_choices(tiny_model: Path) -> None:
    choice = [f"city {number}" for number in range(5000)]
    assert admits({"choice": choice}, "city 4321", tiny_model)
    assert not admits({"choice": choice}, "city 5000", tiny_model)


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"json": {"$ref": "#"}}, "no text"),
        ({"grammar": "root ::= root"}, "no text"),
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"json": {"not": {}}}, "not"),
        ({"json": {"type": "string", "x-guidance": {"lenient": True}, "if": {}}}, "if"),
        ({"json": {"type": "nonsense"}}, "nonsense"),
        ({"json": {"$ref": "https://example.com/schema"}}, "example.com"),
        ({"regex": "a(?=b)"}, "look-ahead"),
        ({"regex": "[a-"}, "regex"),
        ({"grammar": "root ::= missing"}, "missing"),
    ],
)
def test_a_bad_form_fails_its_prompt_alone(new_llm: Callable[..., LLM], form: dict[str, Any], says: str) -> None:
    outputs = new_llm().generate(["ab", "ab"], [params(form), SamplingParams(max_tokens=2, ignore_eos=True)])
    assert outputs[0].error is not None
    assert (outputs[0].error.code, outputs[0].error.param) == ("invalid_params", "structured_outputs")
    assert says in outputs[0].error.message
    assert len(outputs[1].outputs[0].token_ids) == 2


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({}, "none of json"),
        ({"regex": "a", "choice": ["b"]}, "regex and choice"),
        ({"json": "{"}, "no JSON"),
        ({"json": []}, "list"),
        ({"choice": []}, "choice"),
        ({"choice": "ab"}, "choice"),
        ({"choice": [""]}, "empty"),
        ({"regex": 5}, "regex is int"),
        ({"json_object": "yes"}, "json_object is str"),
        ({"guided_json": {}}, "guided_json"),
        ("json", "str"),
    ],
)
def test_params_say_what_is_wrong_with_them(form: Any, says: str) -> None:
    with pytest.raises(EngineError, match=says) as caught:
        StructuredOutputsParams.of(form)
    assert (caught.value.code, caught.value.param) == ("invalid_params", "structured_outputs")


def test_a_form_that_grows_too_large_fails_its_prompt_alone(new_llm: Callable[..., LLM]) -> None:
    form = {"json": {"type": "object", "properties": {f"k{number}": {"type": "string"} for number in range(2000)}}}
    outputs = new_llm().generate(["ab", "ab"], [params(form), SamplingParams(max_tokens=2, ignore_eos=True)])
    assert outputs[0].error is not None
    assert outputs[0].error.code == "structured_outputs_failed"
    assert len(outputs[1].outputs[0].token_ids) == 2


# ── the same whatever else runs ─────────────────────────────────────────────────────────────────────────────────────


def run(folder: Path, count: int, generated: dict[str, list[int]] | None = None, **settings: Any) -> Any:
    """Tokens and ends of `count` choices of one form."""
    config = EngineConfig(**{"kv_cache_memory_bytes": 4 << 20, "dtype": "float32", "block_size": 16, **settings})
    tokenizer = Tokenizer.load(folder)
    core = EngineCore(load_model(folder, config), config, tokenizer.eos_token_ids)
    given = params(COMPACT, seed=5, temperature=1.2)
    form = compile_constraints(given, tokenizer)
    tokens: dict[str, list[int]] = {str(choice): [] for choice in range(count)}
    ends: dict[str, str | None] = {}
    for choice in range(count):
        before = (generated or {}).get(str(choice), [])
        core.add_request(str(choice), [65] * 40, given, choice=choice, generated=before, constraints=form)
    while core.has_unfinished():
        for one in core.step().outputs:
            assert one.error is None
            tokens[one.request_id].extend(one.token_ids)
            ends[one.request_id] = one.finish_reason
    return tokens, ends, core._scheduler.num_preemptions


def test_tokens_are_the_same_alone_preempted_and_continued(tiny_model: Path) -> None:
    tokens, ends, _ = run(tiny_model, 6)
    assert set(ends.values()) == {"stop"}
    assert run(tiny_model, 1)[0]["0"] == tokens["0"]
    cache = 12 * 16 * 2 * 2 * 2 * 16 * 4  # pages of 16 tokens: layers, K and V, heads, their size, bytes
    preempted, _, times = run(tiny_model, 6, kv_cache_memory_bytes=cache, max_model_len=180)
    assert times > 0
    assert preempted == tokens
    cut = {name: one[: len(one) // 2] for name, one in tokens.items()}
    continued, _, _ = run(tiny_model, 6, cut)
    assert continued == {name: one[len(one) // 2 :] for name, one in tokens.items()}
    whole, ends, _ = run(tiny_model, 6, tokens)
    assert not any(whole.values())
    assert set(ends.values()) == {"stop"}


def test_given_tokens_that_have_not_the_form_fail_their_sequence(tiny_model: Path) -> None:
    config = EngineConfig(kv_cache_memory_bytes=4 << 20, dtype="float32")
    tokenizer = Tokenizer.load(tiny_model)
    core = EngineCore(load_model(tiny_model, config), config, tokenizer.eos_token_ids)
    given = params({"choice": ["yes", "no"]})
    core.add_request("a", [65], given, generated=[0], constraints=compile_constraints(given, tokenizer))
    [step] = core.step().outputs
    assert step.error is not None
    assert step.error.code == "structured_outputs_failed"
