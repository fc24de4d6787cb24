"""A job and `LLM` say the same: one engine, one way from prompts to tokens, one way to seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamrunner.engine import LLM, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SETTINGS: dict[str, Any] = {"temperature": 0.8, "max_tokens": 24, "ignore_eos": True}


def test_a_job_with_a_seed_is_the_first_call_of_an_llm_with_it(
    bench: Any, chat_row: Callable[..., str], tiny_model: Path
) -> None:
    own: list[dict[str, Any]] = [{}, {"n": 3}, {"temperature": 0.0}, {"seed": 11}, {"top_p": 0.5, "max_tokens": 7}, {}]
    own.append({"structured_outputs": {"regex": "[a-z]{4,9}"}, "n": 2})
    bench.write_rows([chat_row(number, **body) for number, body in enumerate(own)])
    bench.write_job(sampling={**SETTINGS, "seed": 5})
    assert bench.submit().returncode == 0
    texts = bench.texts()
    chats = [[{"role": "user", "content": f"Tell me about the number {number}."}] for number in range(len(own))]
    params = [SamplingParams(**{**SETTINGS, **body}) for body in own]
    with LLM(tiny_model, seed=5, max_model_len=512, kv_cache_memory_bytes=64 << 20) as llm:
        outputs = llm.chat(chats, params)
    assert [[choice.text for choice in output.outputs] for output in outputs] == [
        texts[f"n{number}"] for number in range(len(own))
    ]
