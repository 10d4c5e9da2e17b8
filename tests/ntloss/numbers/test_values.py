"""Tokens that are given by value, each a number of its own: coordinates, times, actions, scores."""

import math
from functools import partial

import pytest
import tiny_tokenizers
import torch
from reading_cases import batch_of, make_model, next_token
from tolerances import DISTRIBUTION, ONE_COMPUTATION, TWO_PATHS, approx, assert_close

from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary
from ntloss.criteria import gaussian_smoothing
from ntloss.numbers import LabelNumbers, NumberFormat
from ntloss.reading import Question, number_quantiles, read_number

pytestmark = pytest.mark.filterwarnings("ignore::ntloss.reading.UnlikelyNumberWarning")

SIZE = 60
IRREGULAR = (-40, -3, 0, 1, 2, 5, 10, 50)
VALUES = {
    "shares": {10 + i: i / 39 for i in range(40)},
    "coordinates": {10 + i: i for i in range(40)},
    "irregular": {10 + 3 * i: value for i, value in enumerate(IRREGULAR)},
    "of two tokens each": {10 + i: i // 2 for i in range(40)},
    "one": {12: 7.5},
}
BELOW_ZERO = {10 + i: i - 20 for i in range(40)}
DIGITS = {i: str(i) for i in range(10)}
MIXED = DIGITS | VALUES["coordinates"]


def vocabulary_of(mapping):
    return NumberVocabulary.from_mapping(mapping, vocab_size=SIZE)


def rows_of(vocabulary, dtype=torch.float64):
    """Return logits and labels: the number tokens side by side, with one text, and one that is ignored."""
    made = torch.Generator().manual_seed(0)
    labels = torch.tensor([[*vocabulary.token_ids, SIZE - 1, -100, *vocabulary.token_ids]])
    return torch.randn(*labels.shape, SIZE, generator=made, dtype=torch.float64).to(dtype) * 3, labels


def numbers_of(vocabulary, labels):
    loss = NTLCrossEntropyLoss(vocabulary, HLGauss(1.0))
    return LabelNumbers.unpack(loss.prepare(torch.tensor([labels])).numbers)


@pytest.mark.parametrize("mapping", [*VALUES.values(), MIXED], ids=[*VALUES, "mixed"])
def test_a_value_makes_a_token_a_number_of_its_own_and_a_text_a_piece(mapping):
    vocabulary = vocabulary_of(mapping)
    by_value = {token_id for token_id, given in mapping.items() if not isinstance(given, str)}
    assert {token.token_id for token in vocabulary.value_tokens} == by_value
    assert vocabulary.pieces == {token_id: mapping[token_id] for token_id in {*mapping} - by_value}
    if vocabulary.pieces:
        assert [len(slot) for slot in NumberFormat(2).tokens(vocabulary)] == [10, 10]
    else:
        with pytest.raises(ValueError, match="cannot write"):
            NumberFormat(1).tokens(vocabulary)


@pytest.mark.parametrize(
    ("mapping", "are_digits"),
    [
        ({i: i for i in range(10)}, True),
        ({i: float(i % 10) for i in range(20)}, True),  # two forms of each
        ({i: i for i in range(10)} | {10: "."}, True),
        ({i: i for i in range(9)}, False),
        ({i: i for i in range(11)}, False),
        (DIGITS | {10 + i: i for i in range(10)}, False),
    ],
)
def test_the_ten_values_alone_are_the_digits(mapping, are_digits):
    assert bool(vocabulary_of(mapping).value_tokens) == (not are_digits)


class TestLabels:
    def test_neighbors_never_join(self):
        found = numbers_of(vocabulary_of(MIXED), [1, 2, 10 + 3, 10 + 39, 4, 59, -100, 10, 7])
        assert found.magnitude.tolist() == [[12, 12, 3, 39, 4, 0, 0, 0, 7]]
        assert found.starts.tolist() == [[1, 0, 1, 1, 1, 0, 0, 1, 1]]
        assert found.length.tolist() == [[1, 1, 1, 1, 1, 0, 0, 1, 1]]

    def test_what_stands_around_one_is_none_of_its_number(self):
        mapping = DIGITS | {10: ".", 11: "-", 12: ",", 13: " "} | {30 + i: i / 2 for i in range(-10, 11)}
        found = numbers_of(vocabulary_of(mapping), [11, 33, 10, 5, 27, 12, 0, 0, 0, 13, 33])
        assert found.magnitude.tolist() == [[0, 1.5, 0, 0.5, 1.5, 0, 0, 0, 0, 0, 1.5]]
        assert found.unit[0, [1, 4]].tolist() == [1.0, 1.0]


class TestTargets:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    @pytest.mark.parametrize("mapping", VALUES.values(), ids=VALUES)
    def test_they_are_those_of_gaussian_smoothing(self, mapping, dtype):
        vocabulary = vocabulary_of(mapping)
        logits, labels = rows_of(vocabulary, dtype)
        for sigma in (0.02, 1.0, 5.0, 1e6):
            found = []
            for criterion in (HLGauss(sigma), partial(gaussian_smoothing, sigma=sigma)):
                given = logits.clone().requires_grad_()
                loss = NTLCrossEntropyLoss(vocabulary, criterion)(given, labels)
                loss.backward()
                found.append((loss.detach(), given.grad))
            for own, wanted in zip(*found, strict=True):
                assert_close(own, wanted, TWO_PATHS)

    @pytest.mark.parametrize("mapping", [*VALUES.values(), MIXED], ids=[*VALUES, "mixed"])
    def test_as_sigma_vanishes_the_loss_is_cross_entropy(self, mapping):
        vocabulary = vocabulary_of(mapping)
        logits, labels = rows_of(vocabulary)
        logits[..., SIZE - 2] = -torch.inf
        for sigma in (0.0, 1e-9):
            loss = NTLCrossEntropyLoss(vocabulary, HLGauss(sigma))(logits, labels)
            wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            assert_close(loss, wanted, ONE_COMPUTATION)

    def test_the_width_may_be_a_share_of_the_value_or_given(self):
        vocabulary, label = vocabulary_of(BELOW_ZERO), torch.tensor([[10]])  # -20
        one, share, wide = (
            NTLCrossEntropyLoss(vocabulary, criterion)
            for criterion in (HLGauss(2.0), HLGauss(0.0, relative=0.1), HLGauss(5.0))
        )
        given = wide.targets(wide.prepare(label, sigma=torch.tensor([[2.0]])))
        for found in (share.targets(label), given):
            assert_close(found.weights, one.targets(label).weights)

    def test_digits_and_values_of_one_vocabulary_have_targets_of_their_own(self):
        logits, of_digits = rows_of(vocabulary_of(DIGITS))
        of_values = torch.tensor([[10, 49, 12]])
        for mapping, labels in ((DIGITS, of_digits), (VALUES["coordinates"], of_values)):
            mixed, alone = (
                NTLCrossEntropyLoss(vocabulary_of(tokens), HLGauss(3.0))(logits[:, : labels.shape[1]], labels)
                for tokens in (MIXED, mapping)
            )
            assert_close(mixed, alone)

    @pytest.mark.parametrize("criterion", ["ntl_was", "crps", "ntl_mse"])
    def test_units_of_hundreds_are_divided_by_their_range(self, criterion):
        values = {i: 10 * i - 250 for i in range(50)}
        with pytest.raises(ValueError, match="range"):
            NTLCrossEntropyLoss(vocabulary_of(values), criterion)
        divided = {i: (value + 250) / 490 for i, value in values.items()}
        assert NTLCrossEntropyLoss(vocabulary_of(divided), criterion) is not None


class TestReading:
    @pytest.mark.parametrize("kind", ["t5", "llama"])
    @pytest.mark.parametrize("name", ["irregular", "of two tokens each", "one"])
    def test_it_is_the_softmax_over_the_tokens(self, kind, name):
        model, vocabulary = make_model(kind, SIZE), vocabulary_of(VALUES[name])
        questions, levels = [[3, 4, 5], [10, 2, 3, 7]], (0.05, 0.3, 0.5, 0.95)
        found = number_quantiles(model, batch_of(questions), vocabulary, levels)
        for row, question in enumerate(questions):
            probs = next_token(model, torch.tensor([question]))([])
            share = dict.fromkeys(vocabulary.distinct_values, 0.0)
            for token in vocabulary.tokens:
                share[token.value] += math.exp(probs[token.token_id])
            mass, below, quantiles = sum(share.values()), 0.0, []
            for value, own in share.items():
                below += own
                quantiles += [value] * (sum(level <= below / mass for level in levels) - len(quantiles))
            assert found.values[row].tolist() == quantiles
            assert float(found.starts[row]) == approx(mass, DISTRIBUTION[torch.float32])
            mean = sum(value * own for value, own in share.items()) / mass
            assert float(found.mean[row]) == approx(mean, DISTRIBUTION[torch.float32], scale=50.0)
        assert found.passes == 1

    @pytest.mark.parametrize("make", [tiny_tokenizers.byte_level, tiny_tokenizers.sentence_piece])
    def test_added_tokens_are_levels_in_labels_and_readings(self, make):
        tokenizer = make()
        names = {f"<loc{i:04d}>": i for i in range(30)}
        tokenizer.add_tokens([*names])
        vocabulary = NumberVocabulary.from_levels(tokenizer, names)
        assert vocabulary.distinct_values == tuple(range(30))
        found = numbers_of(vocabulary, tokenizer("<loc0012><loc0003> 42 <loc0029>")["input_ids"])
        assert found.magnitude[found.starts > 0].tolist() == [12, 3, 29]
        model = make_model("llama", len(tokenizer))
        for prompt in ("7", "7 ", "It is <loc0003>"):
            reading = read_number(model, tokenizer, Question(prompt, template=None), vocabulary=vocabulary)
            inputs = tokenizer(prompt, return_tensors="pt")
            wanted = number_quantiles(model, {"input_ids": inputs["input_ids"]}, vocabulary)
            assert [reading.low, reading.median, reading.high] == wanted.values[0].tolist()
