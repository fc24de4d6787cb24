from __future__ import annotations

from typing import Any

import pytest

from streamrunner.engine.config import EngineConfig
from streamrunner.engine.errors import EngineError


def test_the_defaults_run_on_any_machine() -> None:
    config = EngineConfig()
    assert (config.device, config.dtype, config.max_model_len, config.enable_prefix_caching) == (
        "auto",
        "auto",
        None,
        True,
    )


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"device": "tpu"}, "device 'tpu' is not supported yet: use auto or cpu"),
        ({"deterministic": False}, "always deterministic"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0, it must be at least 1"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens is 0"),
        ({"max_model_len": -5}, "max_model_len is -5"),
        ({"kv_cache_memory_bytes": 0}, "kv_cache_memory_bytes is 0"),
        ({"block_size": 0}, "block_size is 0"),
        ({"block_size": 12}, "multiple of 16"),
        ({"kv_cache_dtype": "fp8"}, "auto or int8"),
        ({"quantization": "gptq"}, "None or int8"),
    ],
)
def test_what_cannot_be_is_refused_by_name(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(EngineError) as caught:
        EngineConfig(**settings)
    [name] = settings
    assert (caught.value.code, caught.value.param) == ("invalid_config", name)
    assert says in caught.value.message


@pytest.mark.parametrize("deterministic", ["auto", True])
def test_determinism_may_be_asked_for(deterministic: Any) -> None:
    EngineConfig(deterministic=deterministic, device="cpu", dtype="float32")


@pytest.mark.parametrize(
    ("settings", "budget"),
    [({}, 256), ({"max_num_batched_tokens": 64, "max_num_seqs": 8}, 64), ({"max_num_seqs": 1000}, 1000)],
)
def test_a_step_always_has_room_for_one_token_of_every_sequence(settings: dict[str, Any], budget: int) -> None:
    assert EngineConfig(**settings).batched_tokens == budget
