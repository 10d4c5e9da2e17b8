"""Drop-in for `ntloss` 0.3.2: the same values, gradients and attributes.

Other files test the intended differences: criteria/test_criteria.py no numbers, test_splitting.py
micro-batches, test_losses.py half precision and devices, engine/test_compile.py synchronization,
numbers/test_vocabulary.py tokenizers, test_package.py imports.

A separate process imports the published package, from `.published` (`make published`) or from the folder
NTLOSS_PUBLISHED.
"""

import warnings

import published_side
import pytest
import tiny_tokenizers
import torch
from published_side import answers_of_published
from tolerances import DIFFERENCE_IN_GRADIENT, TWO_PATHS, assert_close, assert_identical

import ntloss
from ntloss import NTLoss, NTLossDotProduct

TOKENIZERS = ["tiny", "words", "t5", "gpt2"]
ORDINARY_LOGITS = 3.0  # standard deviation
COUNT = {"tiny": 120, "words": 20, "t5": 24, "gpt2": 16}

pytestmark = pytest.mark.filterwarnings("ignore:.*tokens count as numbers")


@pytest.fixture(scope="session", params=TOKENIZERS)
def folder_of_tokenizer(request, tmp_path_factory):
    makes = {"tiny": tiny_tokenizers.byte_level, "words": tiny_tokenizers.word_level_without_unknown}
    if request.param in makes:
        folder = tmp_path_factory.mktemp("tokenizers") / str(request.param)
        makes[request.param]().save_pretrained(folder)
        return folder
    return request.getfixturevalue("folder_of_real")(request.param)


@pytest.fixture(scope="session")
def both(folder_of_tokenizer, published, tmp_path_factory):
    from transformers import AutoTokenizer

    name = folder_of_tokenizer.name
    size = len(AutoTokenizer.from_pretrained(folder_of_tokenizer))
    requests = published_side.make_requests(str(folder_of_tokenizer), size, COUNT[name])
    theirs = answers_of_published(published, requests, tmp_path_factory.mktemp(f"published_{name}"))
    tokenizer = AutoTokenizer.from_pretrained(folder_of_tokenizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = [published_side.answer(r, published_side.make_loss(r, tokenizer, ntloss)) for r in requests]
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
