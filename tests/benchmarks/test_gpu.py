"""The GPU lane itself, as far as a CPU can try it: sizes of a toy, CPU bodies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpu_kit.cases import TINY, Case
from gpu_kit.checks import Finding, check_invariance, check_ops
from gpu_kit.checks import _check as check_case
from gpu_kit.model import SHAPES, batch_of
from gpu_kit.model_checks import check_model, time_model
from gpu_kit.speed import Rates, time_ops

LANE = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"
CPU = torch.device("cpu")


def test_every_op_is_right_in_every_dtype() -> None:
    findings = list(check_ops(TINY, CPU, seed=5))
    assert [one for one in findings if not one.is_good] == []
    assert {one.dtype for one in findings} == {"bfloat16", "float32"}
    names = " ".join(one.name for one in findings)
    for op in ("rms_norm", "rope_and_cache", "decode", "prefill", "sample", "logprobs_at", "fp8_linear"):
        assert op in names


def test_a_wrong_op_is_found() -> None:
    ones, nan = torch.ones(4), torch.full((4,), float("nan"))
    for wrong in (ones * 1.1, nan):
        assert not check_case(Case("op", lambda wrong=wrong: wrong, ones.double, 1), torch.float32).is_good
    drawn = Case("sample", lambda: torch.tensor([1, 2, 3, 4]), lambda: torch.tensor([1, 2, 3, 9]), 1, tolerance=-0.01)
    assert check_case(drawn, torch.bfloat16).error == 0.25


def test_float32_rows_have_the_same_bits_in_any_batch() -> None:
    found = {one.name: one for one in check_invariance(TINY, CPU, torch.float32)}
    assert found["rms_norm"].is_good
    assert found["attention"].is_good
    assert not torch.are_deterministic_algorithms_enabled(), "the mode is put back"


def test_shares_are_of_what_the_card_was_measured_at() -> None:
    timings = list(time_ops(TINY, CPU, Rates(bytes_per_s=1e9, flops_per_s=1e9)))
    assert all(one.time_ms > 0 and one.of_copy > 0 for one in timings)
    assert {one.name for one in timings if one.of_matmul} == {"paged_attention prefill", "fp8_linear"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card here")
def test_without_a_card_the_lane_says_so() -> None:
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run([sys.executable, str(LANE)], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no CUDA device here" in done.stderr


@pytest.mark.parametrize("name", ["qwen3-0.6b", "llama-3.1-8b"])
def test_our_forward_pass_is_no_further_from_float32_than_transformers(name: str) -> None:
    findings = list(check_model(name, CPU, tiny=True))
    assert [one for one in findings if not one.is_good] == []


def test_a_models_steps_are_timed_against_the_cards_rates() -> None:
    timings = list(time_model("qwen3-0.6b", CPU, Rates(bytes_per_s=1e12, flops_per_s=1e12), tiny=True))
    assert [one.name for one in timings] == ["qwen3-0.6b prefill", "qwen3-0.6b decode, launched"]
    assert all(one.tokens_per_s > 0 for one in timings)


def test_a_batch_gives_each_sequence_slots_of_its_own() -> None:
    batch = batch_of(torch.arange(100).view(2, 50), 30, 47)
    assert batch.token_ids.tolist() == [*range(30, 47), *range(80, 97)]
    assert len(set(batch.slots.tolist())) == 34
    assert batch.tiles.tolist() == [[0, 0, 16], [0, 16, 1], [1, 17, 16], [1, 33, 1]]
    assert batch.sample_rows.tolist() == [16, 33]
    assert set(SHAPES) == {"qwen3-0.6b", "llama-3.1-8b", "qwen3-14b"}


def test_nan_is_never_good() -> None:
    assert not Finding("ops", "norm", "bfloat16", float("nan"), 0.1).is_good
