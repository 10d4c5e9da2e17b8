"""The switch `--rounding`: its noise is one rounding, of every product, and all tolerances allow for it."""

import re
from pathlib import Path

import pytest
import rounding
import torch
import torch.nn.functional as F
from tolerances import ONE_COMPUTATION, assert_close

TESTS = Path(__file__).parent
PRODUCTS = {
    "linear": lambda a, b: F.linear(a[None], b, a[0]),
    "in place": lambda a, b: a.clone().addmm_(a, b),
    "convolution": lambda a, b: F.conv1d(a[None], b[:, :, None]),
    "attention": lambda a, b: F.scaled_dot_product_attention(*(x[None, None] for x in (a, b, a))),
    "backward": lambda a, b: torch.func.grad(lambda x: F.linear(a, x).square().sum())(b),
}


@pytest.mark.skipif(not hasattr(torch.library, "get_kernel"), reason="this PyTorch is too old for the noise")
def test_products_move_by_about_one_rounding(request):
    request.addfinalizer(rounding.stop)
    rounding.install()
    rounding.restart(5)
    left, right = torch.randn(2, 40, 40, generator=torch.Generator().manual_seed(0))
    pairs = {name: [product(left, right) for _ in range(2)] for name, product in PRODUCTS.items()}
    assert [name for name, (one, other) in pairs.items() if torch.equal(one, other)] == []
    for one, other in pairs.values():
        assert_close(one, other, ONE_COMPUTATION)
        with pytest.raises(AssertionError):
            assert_close(1.01 * one, other, ONE_COMPUTATION)


def test_all_tolerances_are_in_one_module():
    own = re.compile(r"testing\.assert_|pytest\.approx|allclose|\b(rtol|atol|rel|abs)=[\d.]|< [\d.]+e-")
    files = {path for path in TESTS.rglob("*.py") if path.name != "tolerances.py"} - {Path(__file__)}
    assert [f"{path}: {found[0]}" for path in sorted(files) if (found := own.search(path.read_text()))] == []
