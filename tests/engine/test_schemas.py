"""Random walks through small random JSON schemas: whatever path the tokens take, the text parses and fits."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrunner.engine.structured_params import StructuredOutputsParams
from streamrunner.engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from streamrunner.engine.grammar import GrammarState

_VOCAB = 300
_NAMES = st.text('abcé"\\ ', min_size=1, max_size=3)
_SCALARS = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.tuples(st.integers(-30, 30), st.integers(0, 40)).map(
        lambda ends: {"type": "integer", "minimum": ends[0], "maximum": ends[0] + ends[1]}
    ),
    st.integers(0, 4).map(lambda most: {"type": "string", "maxLength": most}),
    st.lists(st.none() | st.booleans() | st.integers(-9, 9) | _NAMES, min_size=1, max_size=3).map(
        lambda values: {"enum": values}
    ),
    _NAMES.map(lambda value: {"const": value}),
)


def _containers(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    arrays = st.tuples(inner, st.integers(0, 2), st.integers(0, 2)).map(
        lambda given: {"type": "array", "items": given[0], "minItems": given[1], "maxItems": given[1] + given[2]}
    )
    objects = st.tuples(st.dictionaries(_NAMES, inner, max_size=3), st.integers(0, 7)).map(
        lambda given: {
            "type": "object",
            "properties": given[0],
            "required": [name for place, name in enumerate(given[0]) if given[1] >> place & 1],
            "additionalProperties": False,
        }
    )
    return arrays | objects | st.lists(inner, min_size=1, max_size=2).map(lambda some: {"anyOf": some})


SCHEMAS = st.recursive(_SCALARS, _containers, max_leaves=6)


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """What the schemas above mean."""
    if "anyOf" in schema:
        return any(fits(value, one) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        wanted = schema.get("enum", [schema.get("const")])
        return any(type(value) is type(one) and value == one for one in wanted)
    return _TYPES[schema["type"]](value, schema)


def _is_fitting_object(value: Any, schema: dict[str, Any]) -> bool:
    known = schema["properties"]
    return (
        isinstance(value, dict)
        and set(schema["required"]) <= value.keys() <= known.keys()
        and all(fits(one, known[name]) for name, one in value.items())
    )


_TYPES: dict[str, Any] = {
    "boolean": lambda value, _: isinstance(value, bool),
    "null": lambda value, _: value is None,
    "integer": lambda value, schema: type(value) is int and schema["minimum"] <= value <= schema["maximum"],
    "string": lambda value, schema: isinstance(value, str) and len(value) <= schema["maxLength"],
    "array": lambda value, schema: (
        isinstance(value, list)
        and schema["minItems"] <= len(value) <= schema["maxItems"]
        and all(fits(one, schema["items"]) for one in value)
    ),
    "object": _is_fitting_object,
}


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return Tokenizer.load(tiny_model)


def walk(state: GrammarState, ends: tuple[int, ...], seed: int) -> list[int]:
    """Any allowed token after any other, until the text ends."""
    chooser, tokens = random.Random(seed), list[int]()
    while not state.is_complete:
        bits = np.unpackbits(state.mask().view(np.uint8), bitorder="little")
        token = chooser.choice(bits.nonzero()[0].tolist())
        if token in ends:
            break
        state.advance(token)
        assert state.fault is None
        tokens.append(token)
    return tokens


@settings(max_examples=150, deadline=None)
@given(SCHEMAS, st.integers(0, 1000))
def test_every_walk_through_a_schema_fits_it(tokenizer: Tokenizer, schema: dict[str, Any], seed: int) -> None:
    form = StructuredOutputsParams(json=schema, disable_any_whitespace=True)
    grammar = tokenizer.grammars.compile(form)
    tokens = walk(grammar.start(_VOCAB), tokenizer.eos_token_ids, seed)
    text = tokenizer.decode(tokens)
    assert fits(json.loads(text), schema), (schema, text)
    # Replaying recorded tokens comes to the same place, wherever the cut.
    again = grammar.start(_VOCAB)
    for token in tokens:
        again.advance(token)
    assert again.fault is None
    assert again.is_complete or any(
        again.mask().view(np.uint8)[end // 8] >> end % 8 & 1 for end in tokenizer.eos_token_ids
    )
