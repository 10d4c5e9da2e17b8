"""Drop-in for `ntloss` 0.3.2: the same values, gradients and attributes.

Other files test the intended differences: criteria/test_criteria.py no numbers, test_splitting.py
micro-batches, test_losses.py half precision and devices, engine/test_compile.py synchronization,
numbers/test_vocabulary.py tokenizers, test_package.py imports.

A separate process imports the published package, from `.published` (`make published`) or from the folder
NTLOSS_PUBLISHED.
"""

import warnings
from pathlib import Path

import published_side
import pytest
import tiny_tokenizers
import torch
from published_side import answers_of_published
from tolerances import DIFFERENCE_IN_GRADIENT, TWO_PATHS, assert_close, assert_identical
from transformers import AutoTokenizer

import ntloss
from ntloss import NTLoss, NTLossDotProduct

ORDINARY_LOGITS = 3.0  # standard deviation
COUNT = {"tiny": 120, "words": 20, "t5": 8, "gpt2": 6}  # the large vocabularies take long to be looked at

pytestmark = pytest.mark.filterwarnings("ignore:.*tokens count as numbers")


@pytest.fixture(scope="session", params=["built", "real"])
def both(request, published, tmp_path_factory):
    """Requests with the answers of both packages, of one process for several tokenizers."""
    folder = tmp_path_factory.mktemp("published")
    if request.param == "built":
        tiny_tokenizers.byte_level().save_pretrained(folder / "tiny")
        tiny_tokenizers.word_level_without_unknown().save_pretrained(folder / "words")
        found = [AutoTokenizer.from_pretrained(folder / name) for name in ("tiny", "words")]
    else:
        found = [request.getfixturevalue("real_tokenizer")(name) for name in ("t5", "gpt2")]
    tokenizers = {tokenizer.name_or_path: tokenizer for tokenizer in found}
    requests = [
        made
        for each, tokenizer in tokenizers.items()
        for made in published_side.make_requests(each, len(tokenizer), COUNT[Path(each).name])
    ]
    theirs = answers_of_published(published, requests, folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = [
            published_side.answer(r, published_side.make_loss(r, tokenizers[r["tokenizer"]], ntloss))
            for r in requests
        ]
    return list(zip(requests, theirs, ours, strict=True))


def test_value_and_gradient_equal_the_published_ones(both):
    for request, theirs, ours in both:
        # Otherwise the gradient is a difference of almost equal costs (the model is certain of one token, or
        # squashing makes the costs almost equal), which the two packages round differently.
        well_conditioned = request["scale"] <= ORDINARY_LOGITS and request["settings"]["reweigh"]
        worst = float(theirs["max_dist"])
        rounding = 0.0 if well_conditioned else 4 * torch.finfo(torch.float32).eps * worst
        for name, tolerance in {
            "value": TWO_PATHS[torch.float32],
            "gradient": DIFFERENCE_IN_GRADIENT,
        }.items():
            assert ours[name].dtype == theirs[name].dtype == torch.float32
            reference = float(theirs[name].abs().max())
            assert reference > 0, request
            scale = reference + rounding / tolerance
            assert_close(ours[name], theirs[name], tolerance, f"{name} {request}", scale=scale)


def test_attributes_and_predicted_numbers_equal_the_published_ones(both):
    for request, theirs, ours in both:
        assert ours.keys() == theirs.keys()
        for name in ours.keys() - {"value", "gradient"}:
            assert ours[name].shape == theirs[name].shape, name
            # Squashed distances are computed in another order.
            if name in ("max_dist", "yhat", "nt_mass"):
                assert_close(ours[name], theirs[name], TWO_PATHS, f"{name} {request}")
            else:
                assert_identical(ours[name], theirs[name], f"{name} {request}")


@pytest.mark.parametrize("kind", [NTLoss, NTLossDotProduct])
def test_attributes_are_on_the_device_of_the_loss(kind):
    loss_fn = kind(tiny_tokenizers.byte_level()).to("meta")
    attributes = [getattr(loss_fn, name) for name in published_side.ATTRIBUTES]
    assert {x.device.type for x in attributes if isinstance(x, torch.Tensor)} == {"meta"}
