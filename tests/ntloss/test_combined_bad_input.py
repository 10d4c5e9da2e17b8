"""Every option and input of the combined losses, given wrong: the error says what was given and expected."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from combined_cases import HIDDEN, NUMBERS, VOCAB

from ntloss import NTLCrossEntropyLoss, NTLLinearCrossEntropyLoss, NumberTokenLoss, Wasserstein
from ntloss.functional import cross_entropy_ntl, linear_cross_entropy_ntl

BOTH = (NTLCrossEntropyLoss, NTLLinearCrossEntropyLoss)


class Unbounded:
    def __repr__(self) -> str:
        return "Unbounded()"  # part of a test's name, so without an address

    def __call__(self, record: Any) -> torch.Tensor:
        return -record.log_probs.gather(-1, record.target.unsqueeze(-1)).squeeze(-1)

    def worst(self, values: torch.Tensor) -> None:
        return None


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mode": "both"}, "mode='both': expected 'add' or 'replace'"),
        ({"label_smoothing": -0.1}, "label_smoothing=-0.1: expected 0 to 1"),
        ({"label_smoothing": 1.5}, "label_smoothing=1.5: expected 0 to 1"),
        ({"label_smoothing": float("nan")}, "label_smoothing=nan: expected 0 to 1"),
        ({"z_loss": -1.0}, "z_loss=-1.0: expected 0 or more"),
        ({"z_loss": float("inf")}, "z_loss=inf: expected 0 or more"),
        ({"z_loss": float("nan")}, "z_loss=nan: expected 0 or more"),
        ({"softcap": 0.0}, "softcap=0.0: expected a number above 0, or None"),
        ({"softcap": -30.0}, "softcap=-30.0: expected a number above 0, or None"),
        ({"softcap": float("inf")}, "softcap=inf: expected a number above 0, or None"),
        ({"logit_scale": 0.0}, "logit_scale=0.0: expected a number above 0"),
        ({"logit_scale": float("nan")}, "logit_scale=nan: expected a number above 0"),
        ({"reduction": "average"}, "reduction='average': expected 'mean' or 'sum' or 'none'"),
        ({"criterion": Unbounded(), "reweigh": True}, "reweigh=True needs a criterion with a worst cost"),
    ],
    ids=str,
)
def test_options_out_of_their_range(kind: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        kind(NUMBERS, **options)


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("weight", [-0.3, float("nan"), float("inf"), "0.3"])
def test_a_weight_of_the_number_term_that_is_none(kind: Any, weight: Any) -> None:
    # A negative one would reward wrong numbers, and NaN be found out days later.
    with pytest.raises((TypeError, ValueError), match=r"weight=.*expected"):
        kind(NUMBERS, weight=weight)


@pytest.mark.parametrize("which", ["logits", "linear"])
@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_is_changed_to_none(which: str, weight: float) -> None:
    kind = {"logits": NTLCrossEntropyLoss, "linear": NTLLinearCrossEntropyLoss}[which]
    loss_fn = kind(NUMBERS)
    with pytest.raises(ValueError, match=r"weight=.*expected"):
        loss_fn.weight = weight
    assert loss_fn.weight == 0.3
    tensor = torch.tensor(0.3)
    with pytest.raises(ValueError, match=r"weight=.*expected"):
        call(which, {"weight": tensor.fill_(weight)})
    call(which, {"weight": tensor, "validate": False})  # nothing is read then, as on an accelerator


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("criterion", ["wasserstein", 3, torch.nn.functional.mse_loss])
def test_something_that_is_no_criterion(kind: Any, criterion: Any) -> None:
    with pytest.raises(TypeError, match=r"criterion.*expected"):
        kind(NUMBERS, criterion=criterion)


def test_a_criterion_that_gives_another_shape() -> None:
    class Summed:
        def __call__(self, record: Any) -> torch.Tensor:
            return record.probs.sum()

        def worst(self, values: torch.Tensor) -> float:
            return 1.0

    logits, labels = torch.zeros(3, VOCAB), torch.tensor([9, 2, 3])
    with pytest.raises(ValueError, match=r"Summed.*gave shape.*[Ee]xpected one loss"):
        NTLCrossEntropyLoss(NUMBERS, criterion=Summed())(logits, labels)


@pytest.mark.parametrize("kind", BOTH)
def test_something_that_is_no_vocabulary(kind: Any) -> None:
    for given in (None, {4: 4.0}, 50_000):
        with pytest.raises(TypeError, match=f"NumberVocabulary, given {type(given).__name__}"):
            kind(given)


@pytest.mark.parametrize("kind", BOTH)
def test_options_that_do_not_exist(kind: Any) -> None:
    with pytest.raises(TypeError, match="smoothing"):
        kind(NUMBERS, smoothing=0.1)
    with pytest.raises(TypeError, match="chunk_size"):
        NTLCrossEntropyLoss(NUMBERS, chunk_size=4)
    with pytest.raises(TypeError, match="inplace_backward"):
        NTLLinearCrossEntropyLoss(NUMBERS, inplace_backward=True)


@pytest.mark.parametrize("chunk_size", [0, -4, 2.5, "64"])
def test_chunks_that_hold_no_whole_number_of_tokens(chunk_size: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"chunk_size=.*expected 1 or more tokens, or None"):
        NTLLinearCrossEntropyLoss(NUMBERS, chunk_size=chunk_size)


def call(which: str, options: dict[str, Any] | None = None, **changes: Any) -> Any:
    given: dict[str, Any] = {"labels": torch.tensor([9, 2, 3]), **changes}
    if which == "logits":
        logits = given.pop("logits", torch.zeros(3, VOCAB))
        return NTLCrossEntropyLoss(NUMBERS, **(options or {}))(logits, **given)
    hidden = given.pop("hidden_states", torch.zeros(3, HIDDEN))
    weight = given.pop("lm_head_weight", torch.zeros(VOCAB, HIDDEN))
    return NTLLinearCrossEntropyLoss(NUMBERS, **(options or {}))(hidden, weight, **given)


@pytest.mark.parametrize("which", ["logits", "linear"])
@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"labels": torch.tensor([9, 2])}, ValueError, r"labels of shape \[2\] do not fit: expected \[3\]"),
        (
            {"labels": torch.zeros(3, 1, dtype=torch.int64)},
            ValueError,
            r"labels of shape \[3, 1\] do not fit",
        ),
        ({"labels": torch.tensor([9.0, 2.0, 3.0])}, TypeError, "token ids, torch.int64, given torch.float32"),
        ({"labels": [9, 2, 3]}, TypeError, "token ids, torch.int64, given list"),
        ({"labels": torch.tensor([9, 2, VOCAB])}, ValueError, "label 23 lies outside .* expected 0 to 22"),
        ({"labels": torch.tensor([9, -1, 3])}, ValueError, "label -1 lies outside .* ignore_index=-100"),
        ({"labels": torch.zeros(3, dtype=torch.int64, device="meta")}, ValueError, "labels are on meta"),
        ({"loss_weights": torch.ones(2)}, ValueError, r"loss_weights of shape \[2\]: expected .* \[3\]"),
        ({"loss_weights": torch.tensor([1.0, -1.0, 0.0])}, ValueError, "loss_weights hold -1.0: expected"),
        (
            {"loss_weights": torch.tensor([1.0, torch.nan, 0.0])},
            ValueError,
            "loss_weights hold nan: expected",
        ),
        ({"loss_weights": torch.ones(3, dtype=torch.complex64)}, TypeError, "loss_weights: expected a real"),
        ({"loss_weights": [1.0, 1.0, 1.0]}, TypeError, "loss_weights: expected a real tensor, given list"),
        ({"loss_weights": torch.ones(3, device="meta")}, ValueError, "loss_weights are on meta"),
        ({"num_items_in_batch": 3}, ValueError, "num_numbers_in_batch is missing"),
        ({"num_numbers_in_batch": 3}, ValueError, "num_items_in_batch is missing"),
    ],
    ids=str,
)
def test_labels_weights_and_counts_that_do_not_fit(
    which: str, changes: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        call(which, **changes)


@pytest.mark.parametrize("which", ["logits", "linear"])
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_counts_without_a_mean(reduction: str, which: str) -> None:
    with pytest.raises(
        ValueError, match=f"what reduction='mean' divides by; given with reduction='{reduction}'"
    ):
        call(which, {"reduction": reduction}, num_items_in_batch=3, num_numbers_in_batch=1)


@pytest.mark.parametrize("which", ["logits", "linear"])
@pytest.mark.parametrize("count", [-3, float("nan")])
def test_counts_that_count_nothing(count: float, which: str) -> None:
    # Silently a loss of zero, otherwise.
    with pytest.raises(ValueError, match=r"num_items_in_batch=.*expected"):
        call(which, num_items_in_batch=count, num_numbers_in_batch=1)


@pytest.mark.parametrize("which", ["logits", "linear"])
def test_a_shift_of_labels_without_a_sequence(which: str) -> None:
    one = {"logits": torch.zeros(VOCAB)} if which == "logits" else {"hidden_states": torch.zeros(HIDDEN)}
    with pytest.raises(ValueError, match=r"shift.*expected"):
        call(which, {"shift": True}, labels=torch.tensor(9), **one)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"logits": torch.zeros(3, VOCAB + 1)}, ValueError, r"shape \[3, 24\] .* vocabulary's size, 23"),
        ({"logits": torch.tensor(0.0)}, ValueError, r"shape \[\] .* vocabulary's size, 23"),
        ({"logits": torch.zeros(3, VOCAB, dtype=torch.int64)}, TypeError, "floating-point .* torch.int64"),
        ({"logits": torch.zeros(3, VOCAB, dtype=torch.complex64)}, TypeError, "floating-point .*complex64"),
        ({"logits": [[0.0] * VOCAB] * 3}, TypeError, "floating-point .* given list"),
        ({"logits": None}, TypeError, "floating-point .* given NoneType"),
    ],
    ids=["width", "scalar", "ints", "complex", "list", "None"],
)
def test_logits_that_do_not_fit(changes: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call("logits", **changes)


# Where PyTorch names both dtypes or devices itself, that will do.
WRONG_HEADS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"hidden_states": torch.zeros(3, 7)}, ValueError, r"shape \[23, 6\] does not fit .* \[3, 7\]"),
    ({"hidden_states": torch.zeros(3, 6, dtype=torch.int64)}, TypeError, "hidden_states: .* torch.int64"),
    ({"hidden_states": [[0.0] * 6] * 3}, TypeError, "hidden_states: expected .* given list"),
    ({"hidden_states": torch.tensor(0.0)}, ValueError, r"does not fit hidden_states of shape \[\]"),
    ({"lm_head_weight": torch.zeros(22, 6)}, ValueError, "has 22 rows, the vocabulary 23 tokens"),
    ({"lm_head_weight": torch.zeros(6, 23)}, ValueError, r"shape \[6, 23\] does not fit .* expected \[vocab"),
    ({"lm_head_weight": torch.zeros(1, 23, 6)}, ValueError, r"shape \[1, 23, 6\] does not fit"),
    ({"lm_head_weight": torch.nn.Linear(6, 23)}, TypeError, "lm_head_weight: expected .* given Linear"),
    ({"lm_head_weight": torch.zeros(23, 6, device="meta")}, ValueError, "lm_head_weight on meta"),
    ({"lm_head_weight": torch.zeros(23, 6).bfloat16()}, Exception, "(?i)float.*bfloat16"),
    ({"bias": torch.zeros(22)}, ValueError, r"bias of shape \[22\]: expected \[vocab\] = \[23\]"),
    ({"bias": torch.zeros(23, 1)}, ValueError, r"bias of shape \[23, 1\]: expected \[vocab\] = \[23\]"),
    ({"bias": True}, TypeError, "bias: expected .* given bool"),
    ({"bias": torch.zeros(23, device="meta")}, Exception, "on (device )?meta"),
    ({"bias": torch.zeros(23).bfloat16()}, Exception, "(?i)float32, bias is .*bfloat16"),
]  # fmt: skip
WRONG_HEAD_IDS = [
    "hidden size", "hidden ints", "hidden list", "hidden scalar", "head rows", "head transposed", "head 3-D",
    "head module", "head device", "head dtype", "bias shape", "bias 2-D", "bias flag", "bias device",
    "bias dtype",
]  # fmt: skip


@pytest.mark.parametrize("drop_ignored", [True, False])
@pytest.mark.parametrize(("changes", "error", "says"), WRONG_HEADS, ids=WRONG_HEAD_IDS)
def test_a_head_that_does_not_fit(changes: dict[str, Any], error: Any, says: str, drop_ignored: bool) -> None:
    with pytest.raises(error, match=says):
        call("linear", {"drop_ignored": drop_ignored}, **changes)


@pytest.mark.parametrize(("changes", "error", "says"), WRONG_HEADS, ids=WRONG_HEAD_IDS)
def test_a_head_that_does_not_fit_a_standalone_loss(changes: dict[str, Any], error: Any, says: str) -> None:
    given = {"hidden_states": torch.zeros(3, HIDDEN), "lm_head_weight": torch.zeros(VOCAB, HIDDEN), **changes}
    hidden, weight = given.pop("hidden_states"), given.pop("lm_head_weight")
    with pytest.raises(error, match=says):
        NumberTokenLoss(NUMBERS, reweigh=False).from_hidden(hidden, weight, torch.tensor([9, 2, 3]), **given)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"softcap": 0.0}, "softcap=0.0: expected a number above 0, or None"),
        ({"softcap": -1.0}, "softcap=-1.0: expected a number above 0, or None"),
        ({"logit_scale": 0.0}, "logit_scale=0.0: expected a number above 0"),
        ({"reduction": "average"}, "reduction='average': expected one of 'mean', 'sum', 'none'"),
    ],
    ids=str,
)
def test_options_of_from_hidden(options: dict[str, Any], says: str) -> None:
    loss_fn = NumberTokenLoss(NUMBERS, reweigh=False)
    with pytest.raises(ValueError, match=re.escape(says)):
        loss_fn.from_hidden(torch.zeros(3, 6), torch.zeros(VOCAB, 6), torch.tensor([9, 2, 3]), **options)


def test_the_functions_say_the_same() -> None:
    labels = torch.tensor([9, 2, 3])
    with pytest.raises(ValueError, match="mode='both': expected"):
        cross_entropy_ntl(torch.zeros(3, VOCAB), labels, NUMBERS, mode="both")
    with pytest.raises(ValueError, match="has 22 rows"):
        linear_cross_entropy_ntl(torch.zeros(3, 6), torch.zeros(22, 6), labels, NUMBERS)
    with pytest.raises(TypeError, match="smoothing"):
        cross_entropy_ntl(torch.zeros(3, VOCAB), labels, NUMBERS, smoothing=0.1)


def test_normalizers_check_their_labels() -> None:
    module = NTLCrossEntropyLoss(NUMBERS)
    with pytest.raises(TypeError, match=r"token ids, torch.int64, given torch.float32"):
        module.normalizers(torch.zeros(3))
    with pytest.raises(ValueError, match="label 99 lies outside"):
        module.normalizers(torch.tensor([99]))
    with pytest.raises(ValueError, match=r"loss_weights of shape \[1\]"):
        module.normalizers(torch.tensor([9, 2]), torch.ones(1))


def test_values_are_not_read_where_the_caller_vouches_for_them() -> None:
    weights = torch.tensor([1.0, -1.0, 1.0])
    loss = NTLCrossEntropyLoss(NUMBERS, validate=False)(
        torch.zeros(3, VOCAB), torch.tensor([9, 2, 3]), weights
    )
    assert loss.isfinite()


@pytest.mark.parametrize(
    ("criterion", "says"),
    [
        (Wasserstein, r"Wasserstein is a class: expected an instance, Wasserstein\(\)"),
        ("wasserstein", "what get_criterion"),
    ],
    ids=["class", "name"],
)
def test_a_criterion_that_is_no_instance(criterion: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        NTLCrossEntropyLoss(NUMBERS, criterion)


class Learnt(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, record: Any) -> torch.Tensor:
        return record.probs.sum(-1) * self.scale

    def worst(self, values: torch.Tensor) -> None:
        return None


def test_a_criterion_to_train_is_refused_where_it_would_not_be() -> None:
    NTLCrossEntropyLoss(NUMBERS, Learnt())
    with pytest.raises(ValueError, match="Learnt has parameters to train"):
        NTLLinearCrossEntropyLoss(NUMBERS, Learnt())
