"""Gaussian targets on whole numbers, against the masses of the numbers themselves."""

import math
import pickle
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tolerances import CANCELLATION, VALUE_TOLERANCE, approx, assert_close

from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary
from ntloss.criteria import make_criterion
from ntloss.engine.targets import make_targets
from ntloss.numbers import LabelNumbers

POINT, MINUS, TEXT = 10, 11, 12
DIGITS = NumberVocabulary.from_mapping({**{d: d for d in range(10)}, POINT: ".", MINUS: "-"}, vocab_size=14)
NAN = math.nan
EXACT = VALUE_TOLERANCE[torch.float64]


def encode(text):
    return [{".": POINT, "-": MINUS, " ": TEXT}.get(c) if not c.isdigit() else int(c) for c in text]


def targets_of(criterion, labels, vocabulary=DIGITS, dtype=torch.float64):
    """The targets of a row's tokens, `[tokens, values]`."""
    row = torch.tensor([encode(labels) if isinstance(labels, str) else labels])
    loss_fn = NTLCrossEntropyLoss(vocabulary, criterion)
    term = loss_fn.term
    logits = torch.zeros(*row.shape, vocabulary.vocab_size, dtype=dtype)
    targets = make_targets(term, row, logits, "mean")
    numbers = LabelNumbers.unpack(targets.numbers)
    return criterion.targets(
        term.tables.values.to(dtype), targets.target.clamp(min=0), numbers, term.tables.cells
    )


def mass_of(criterion, text, label, **options):
    """The share of the target that is on a number, given the label: the product over its digits.

    The target of a digit is conditioned on the label's own digits before it, so the number's share is known
    where all of its digits but the last are the label's.
    """
    targets = targets_of(criterion, label, **options)
    vocabulary = options.get("vocabulary", DIGITS)
    ids = encode(text) if isinstance(text, str) else text
    index = {t.token_id: vocabulary.distinct_values.index(t.value) for t in vocabulary.tokens}
    return math.prod(float(targets[i, index[y]]) for i, y in enumerate(ids) if y in index)


def mass(low, high, mean, sigma):
    a, b = ((edge - mean) / (sigma * math.sqrt(2)) for edge in (low, high))
    return (math.erfc(a) - math.erfc(b) if a > 0 else math.erf(b) - math.erf(a)) / 2


class TestSharesOfWholeNumbers:
    @given(st.integers(0, 9999), st.integers(0, 3), st.floats(0.05, 300))
    def test_each_digit_has_the_mass_of_the_numbers_that_begin_with_it(self, label, place, sigma):
        text = f"{label:04d}"
        row = targets_of(HLGauss(sigma, leading_zeros=True), text)[place]
        unit = 10 ** (3 - place)
        prefix = label // (10 * unit) * 10 * unit
        masses = [
            mass(prefix + d * unit - 0.5, prefix + (d + 1) * unit - 0.5, label, sigma) for d in range(10)
        ]
        wanted = [share / math.fsum(masses) for share in masses]
        assert row.tolist() == approx(wanted, CANCELLATION, scale=1.0)

    @given(st.integers(0, 99), st.integers(0, 99), st.floats(0.05, 3))
    def test_decimals_are_in_the_unit_of_the_number(self, whole, rest, sigma):
        text = f"{whole:02d}.{rest:02d}"
        total = mass(-0.005, 99.995, float(text), sigma)
        wanted = mass(float(text) - 0.005, float(text) + 0.005, float(text), sigma) / total
        found = mass_of(HLGauss(sigma, leading_zeros=True), text, text)
        assert found == approx(wanted, CANCELLATION, scale=1.0)

    def test_below_zero_they_mirror_those_above(self):
        for label in ("39", "12"):
            assert_close(targets_of(HLGauss(4.0), f"-{label}"), targets_of(HLGauss(4.0), f" {label}"), EXACT)


class TestTargets:
    def test_neighbours_share_a_target_over_a_carry(self):
        first, last = targets_of(HLGauss(1.0), "39")
        assert first[[3, 4]].tolist() == approx(
            [mass(-99, 0.5, 0, 1), mass(0.5, 99, 0, 1)], CANCELLATION, scale=1.0
        )
        assert int(last.argmax()) == 9

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_carry_over_thirty_digits_is_as_precise(self, dtype):
        short = targets_of(HLGauss(1.0), "39", dtype=dtype)[0]
        for text in ("3" + "9" * 29, "-3" + "9" * 29, "3." + "9" * 18):
            sigma = 1.0 if "." not in text else 1e-18
            row = targets_of(HLGauss(sigma), text, dtype=dtype)[int(text.startswith("-"))]
            assert_close(row, short, VALUE_TOLERANCE[torch.float32])

    def test_as_sigma_vanishes_the_loss_is_cross_entropy(self):
        logits, labels = torch.randn(2, 9, 14, dtype=torch.float64), torch.tensor([encode("7 39.5-20")] * 2)
        for sigma in (0.0, 1e-9, 0.001):
            loss = NTLCrossEntropyLoss(DIGITS, HLGauss(sigma))(logits, labels)
            assert_close(
                loss, torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), EXACT
            )

    def test_the_form_of_a_value_counts_as_in_cross_entropy(self):
        pairs = {n: str(n) for n in range(10)} | {10 + n: f"{n:02d}" for n in range(100)} | {110: "."}
        vocabulary = NumberVocabulary.from_mapping(pairs, vocab_size=112)
        logits, labels = torch.randn(1, 4, 112, dtype=torch.float64), torch.tensor([[1, 110, 15, 111]])
        loss = NTLCrossEntropyLoss(vocabulary, HLGauss(1e-6))(logits, labels)  # 1.05, not 1.5
        assert_close(loss, torch.nn.functional.cross_entropy(logits[0], labels[0]), EXACT)
        terms = NTLCrossEntropyLoss(vocabulary, HLGauss(1e-6), mode="add").terms(logits, labels)
        assert terms.ntl < terms.ce  # beside cross-entropy, the forms of a value are one

    def test_as_sigma_grows_the_target_is_uniform_over_the_cells(self):
        for sigma in (1e8, 1e30):
            first, last = targets_of(HLGauss(sigma), "39", dtype=torch.float32)
            assert_close(first, torch.tensor([0.0, *[1 / 9] * 9]), VALUE_TOLERANCE[torch.float32])
            assert_close(last, torch.full((10,), 0.1), VALUE_TOLERANCE[torch.float32])

    @pytest.mark.parametrize(
        ("text", "padded", "zero"), [("39", False, False), ("39", True, True), ("09", False, True)]
    )
    def test_a_leading_zero_only_where_answers_are_padded(self, text, padded, zero):
        first = targets_of(HLGauss(30.0, leading_zeros=padded), text)[0]
        assert bool(first[0] > 0) == zero

    def test_a_number_that_the_row_cuts_is_the_number_of_its_digits(self):
        assert_close(targets_of(HLGauss(2.0), "7 39"), targets_of(HLGauss(2.0), "7 39 ")[:4], EXACT)

    def test_a_token_with_a_point_of_its_own_keeps_cross_entropy(self):
        vocabulary = NumberVocabulary.from_mapping({**{d: d for d in range(10)}, 10: "3.5"}, vocab_size=11)
        (row,) = targets_of(HLGauss(5.0), [10], vocabulary=vocabulary)
        assert row[vocabulary.distinct_values.index(3.5)] == 1


class TestSigma:
    def test_it_may_change_between_steps_without_a_new_graph(self):
        criterion, graphs = HLGauss(3.0), []

        def count(graph, _):
            graphs.append(graph)
            return graph

        loss_fn = NTLCrossEntropyLoss(DIGITS, criterion)
        compiled = torch.compile(loss_fn, backend=count, fullgraph=True)
        logits, labels = torch.randn(1, 2, 14), torch.tensor([[3, 9]])
        prepared = loss_fn.prepare(labels)
        for sigma in (3.0, 1.0, 0.2):
            criterion.sigma = sigma
            found = compiled(logits, prepared)
            assert_close(found, loss_fn(logits, labels), VALUE_TOLERANCE[torch.float32])
        assert len(graphs) == 1
        assert float(loss_fn(logits, labels)) != float(
            NTLCrossEntropyLoss(DIGITS, HLGauss(3.0))(logits, labels)
        )

    def test_a_tensor_of_the_callers_is_used_as_it_is(self):
        sigma = torch.tensor(2.0)
        criterion = HLGauss(sigma)
        sigma.fill_(0.5)
        assert_close(
            targets_of(criterion, "39"), targets_of(HLGauss(0.5), "39"), VALUE_TOLERANCE[torch.float32]
        )

    def test_a_loss_on_a_device_without_values_keeps_it(self):
        loss_fn = NTLCrossEntropyLoss(DIGITS, HLGauss((3.0, 1.0)))
        loss_fn.to("meta").anneal(1.0)
        assert float(loss_fn.to("cpu").criterion.sigma) == 1.0

    def test_for_answers_it_falls_to_an_eighth(self):
        criterion = HLGauss.for_answers([0, 100], leading_zeros=True)
        assert [criterion.anneal(p) for p in (0.0, 0.5, 1.0, 1.2)] == approx([27.5, 15.46875, 3.4375, 3.4375])
        assert float(criterion.sigma) == approx(3.4375)

    @pytest.mark.parametrize(
        ("answers", "are_padded"),
        [
            (["00326", "00400"], True),
            (["-007", "+012"], True),
            (["$05.50", "12"], True),
            (iter(["100", "007"]), True),
            (["326", "400"], False),
            (["0.05", ".05", "0"], False),
            (["1,005", "10"], False),
            ([326, 400], False),
        ],
    )
    def test_zeros_that_pad_texts_are_seen(self, answers, are_padded):
        answers = [*answers]
        assert HLGauss.for_answers(answers).leading_zeros == are_padded
        assert HLGauss.for_fields({"size": answers, "other": [1, 2]}).leading_zeros == are_padded
        assert not HLGauss.for_answers(answers, leading_zeros=False).leading_zeros

    @pytest.mark.parametrize(
        ("answers", "expected"), [([2, 3, 5, 30, 400, 9000], 1), ([*range(1, 1001)], 0), ([-5, 3, 9000], 0)]
    )
    def test_answers_that_spread_widely_are_a_warning(self, answers, expected):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            HLGauss.for_answers(answers)
        assert sum("NumberRegressor" in str(warning.message) for warning in caught) == expected

    def test_a_width_that_never_falls_is_a_warning(self):
        logits, labels = torch.randn(1, 2, 14, requires_grad=True), torch.tensor([[3, 9]])
        for anneals in (True, False):
            loss_fn = NTLCrossEntropyLoss(DIGITS, HLGauss((3.0, 1.0)))
            loss_fn(logits, labels)
            if anneals:
                loss_fn.anneal(0.0)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(120):
                    loss_fn(logits, labels)
                with torch.no_grad():
                    loss_fn(logits, labels)
            assert sum("anneal" in str(warning.message) for warning in caught) == (not anneals)

    @pytest.mark.parametrize(
        ("make", "error"),
        [
            (lambda: HLGauss(-1.0), "sigma=-1.0"),
            (lambda: HLGauss("4"), "sigma='4'"),
            (lambda: HLGauss((1.0, 2.0, 3.0)), "sigma="),
            (lambda: HLGauss(1.0, relative=-0.1), "relative=-0.1"),
            (lambda: HLGauss(1.0).anneal(0.5), "schedule"),
            (lambda: HLGauss((2.0, 1.0)).anneal(-0.5), "progress=-0.5"),
            (lambda: HLGauss.for_answers([3, 3]), "answers"),
            (lambda: HLGauss.for_answers([3, NAN]), "answers.*nan"),
            (lambda: HLGauss.for_answers(["3", "about 3"]), "answers.*about 3.*parse_number"),
            (lambda: HLGauss.for_answers(["3", "3.0"]), "answers"),
            (lambda: HLGauss.for_answers([3, None]), "answers.*None"),
            (lambda: HLGauss.for_answers("123"), "answers.*123"),
            (lambda: HLGauss.for_fields({"size": 3}), "size.*3"),
            (lambda: HLGauss(1.0, relative=True), "relative=True"),
            (lambda: HLGauss.for_answers([3, 10**400]), "answers.*1000"),
            (lambda: HLGauss(torch.tensor(-1.0)), "sigma=-1.0"),
        ],
    )
    def test_what_cannot_be_is_an_error(self, make, error):
        with pytest.raises((TypeError, ValueError), match=error):
            make()

    def test_it_is_made_by_name_pickled_and_shown(self):
        criterion = make_criterion(
            {"name": "hl_gauss", "sigma": [8.0, 1.0], "relative": 0.1, "leading_zeros": True}
        )
        assert (
            repr(pickle.loads(pickle.dumps(criterion)))
            == "HLGauss(sigma=(8, 1), relative=0.1, leading_zeros=True)"
        )
