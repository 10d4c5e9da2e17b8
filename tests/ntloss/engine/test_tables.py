"""The tables of a vocabulary: built once, on the device of the module."""

from __future__ import annotations

from typing import Any

import torch
from combined_cases import (
    NUMBERS,
    numbers_case,
)

from ntloss import (
    SMMD,
    Dist2,
    NumberTokenLoss,
)
from ntloss.criteria import (
    WeightedSum,
)


def test_tables_are_built_once_move_with_the_module_and_keep_their_dtype(monkeypatch: Any) -> None:
    calls = []
    make = SMMD.bind
    monkeypatch.setattr(SMMD, "bind", lambda self, *given: calls.append(1) or make(self, *given))
    loss = NumberTokenLoss(NUMBERS, WeightedSum((SMMD(), Dist2())))
    before = len(calls)
    case = numbers_case("smmd")
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        loss(case.logits(dtype), case.labels)
    assert len(calls) == before
    assert not loss.state_dict()
    for dtype in (torch.float32, torch.float64):
        smmd, dist2 = loss.half().objective._bound[dtype].keywords["criteria"]
        assert {table.dtype for table in (smmd.keywords | dist2.keywords).values()} == {dtype}
    smmd, _ = loss.to("meta").objective._bound[torch.float32].keywords["criteria"]
    assert smmd.keywords["matrix"].device.type == "meta"
