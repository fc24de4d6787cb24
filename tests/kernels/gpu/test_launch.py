from __future__ import annotations

import torch

from streamrunner.kernels.gpu.launch import Launch, capability, half_dtype, next_power_of_2, num_sms, recording
from streamrunner.kernels.gpu.norm import rms_norm

META = torch.device("meta")


def test_inside_recording_a_launch_is_told_and_not_run() -> None:
    heard: list[Launch] = []
    with recording(heard.append, 90):
        out = rms_norm(torch.empty(3, 40, device="meta"), torch.empty(40, device="meta"), 1e-6, torch.float16)
    assert (out.shape, out.dtype) == ((3, 40), torch.float16)
    [launch] = heard
    assert (launch.grid, launch.constants["SIZE"], launch.constants["BLOCK"]) == ((3,), 40, 64)


def test_a_recording_stands_for_a_card_and_ends_with_its_block() -> None:
    with recording(lambda _: None, 100):
        assert (capability(META), half_dtype(META)) == (100, torch.bfloat16)
        with recording(lambda _: None, 80):
            assert num_sms(META) == 108
        assert capability(META) == 100
    assert half_dtype(torch.device("cpu")) == torch.float16


def test_blocks_hold_what_they_must() -> None:
    assert [next_power_of_2(value) for value in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]
