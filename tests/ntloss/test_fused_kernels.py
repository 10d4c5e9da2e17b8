"""The examples of docs/fused_kernels.md."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
import torch.nn.functional as F
from pages import snippets
from tolerances import approx

from ntloss import NTLCrossEntropyLoss

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fused_kernels.md"


def blocks():
    return snippets("docs/fused_kernels.md")


@pytest.fixture
def one_process(tmp_path):
    """A process group of one process, in place of torchrun's."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="the page needs F.linear_cross_entropy")
def test_the_page_runs_as_a_script(one_process):
    names: dict[str, Any] = {}
    losses = []
    for block in blocks():
        exec(compile(block, str(PAGE), "exec"), names)
        losses.append(names["loss"].item())
    whole = NTLCrossEntropyLoss(names["vocabulary"])(
        names["hidden_states"] @ names["head"].weight.T, names["labels"]
    )
    # The number term beside another kernel's cross-entropy, and the sharded losses.
    assert losses == approx([whole.item()] * 3)
