from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from streamrunner.engine.default_params import default_params
from streamrunner.engine.errors import EngineError
from streamrunner.engine.params import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path


def test_a_model_without_a_recommendation_may_fill_the_context(tmp_path: Path) -> None:
    assert default_params(tmp_path) == SamplingParams(max_tokens=None)


def test_what_the_makers_recommend_is_taken(tmp_path: Path) -> None:
    found = {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": None,
        "max_new_tokens": 99,
        "eos_token_id": [1],
        "do_sample": True,
    }
    (tmp_path / "generation_config.json").write_text(json.dumps(found))
    assert default_params(tmp_path) == SamplingParams(temperature=0.6, top_k=20, max_tokens=99)


@pytest.mark.parametrize("text", ["{", "[]", '{"top_p": 7}', '{"temperature": "hot"}'])
def test_a_recommendation_that_cannot_be_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(EngineError, match=r"generation_config\.json") as caught:
        default_params(tmp_path)
    assert caught.value.code == "model_unsupported"
