"""The tables of a vocabulary and of a criterion: built once, in each dtype, on the device of the module."""

import torch
from combined_cases import NUMBERS, numbers_case

from ntloss import SMMD, Dist2, NumberTokenLoss
from ntloss.criteria import WeightedSum


def test_tables_are_built_once_move_with_the_module_and_keep_their_dtype(monkeypatch):
    made, make = [], SMMD.bind
    monkeypatch.setattr(SMMD, "bind", lambda *given: made.append(make(*given)) or made[-1])
    loss = NumberTokenLoss(NUMBERS, WeightedSum((SMMD(), Dist2())))
    case = numbers_case("smmd")
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        loss.half()(case.logits(dtype), case.labels)
    assert not loss.state_dict()
    matrices = [bound.keywords["matrix"] for bound in made]
    assert {matrix.dtype for matrix in matrices} == {torch.float32, torch.float64}
    assert len(matrices) == 2
    loss.to("meta")
    assert {bound.keywords["matrix"].device.type for bound in made[2:]} == {"meta"}
