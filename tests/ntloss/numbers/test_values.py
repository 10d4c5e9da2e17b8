"""Tokens that are given by value, each a number of its own: coordinates, times, actions, scores."""

import math
from functools import partial

import pytest
import tiny_tokenizers
import torch
import trainer_cases as cases
from reading_cases import batch_of, make_model, next_token
from tolerances import DISTRIBUTION, ONE_COMPUTATION, TWO_PATHS, approx, assert_close, assert_identical

from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary
from ntloss.criteria import gaussian_smoothing
from ntloss.numbers import LabelNumbers, NumberFormat
from ntloss.reading import Limits, Question, number_quantiles, read_number
from ntloss.trainers import make_number_aware

pytestmark = pytest.mark.filterwarnings("ignore::ntloss.reading.UnlikelyNumberWarning")

SIZE = 60
IRREGULAR = (-40, -3, 0, 1, 2, 5, 10, 50)
VALUES = {
    "coordinates": {10 + i: i for i in range(40)},
    "shares": {10 + i: i / 39 for i in range(40)},
    "steps of five": {10 + i: 5 * i for i in range(20)},
    "below and above zero": {10 + i: i - 20 for i in range(40)},
    "irregular": {10 + 3 * i: value for i, value in enumerate(IRREGULAR)},
    "of two tokens each": {10 + i: i // 2 for i in range(40)},
    "one": {12: 7.5},
    "two": {12: 0, 13: 1},
    "ten of them": {10 + i: i + 1 for i in range(10)},
}
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


class TestVocabulary:
    @pytest.mark.parametrize("mapping", VALUES.values(), ids=VALUES)
    def test_a_value_makes_a_token_a_number_of_its_own(self, mapping):
        vocabulary = vocabulary_of(mapping)
        assert [token.token_id for token in vocabulary.value_tokens] == sorted(mapping)
        assert not vocabulary.pieces
        with pytest.raises(ValueError, match="cannot write"):
            NumberFormat(1).tokens(vocabulary)

    def test_texts_are_pieces_of_numbers_beside_them(self):
        vocabulary = vocabulary_of(MIXED)
        assert {token.token_id for token in vocabulary.value_tokens} == {*VALUES["coordinates"]}
        assert vocabulary.pieces == DIGITS
        assert [len(slot) for slot in NumberFormat(2).tokens(vocabulary)] == [10, 10]

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
    def test_the_ten_values_alone_are_the_digits(self, mapping, are_digits):
        assert bool(vocabulary_of(mapping).value_tokens) == (not are_digits)


class TestLabels:
    def test_neighbors_never_join(self):
        found = numbers_of(vocabulary_of(MIXED), [1, 2, 10 + 3, 10 + 39, 4, 59, -100, 10, 7])
        assert found.magnitude.tolist() == [[12, 12, 3, 39, 4, 0, 0, 0, 7]]
        assert found.starts.tolist() == [[1, 0, 1, 1, 1, 0, 0, 1, 1]]
        assert found.length.tolist() == [[1, 1, 1, 1, 1, 0, 0, 1, 1]]

    def test_what_stands_around_one_is_none_of_its_number(self):
        mapping = DIGITS | {10: ".", 11: "-", 12: ",", 13: " "} | {30 + i: i / 2 for i in range(-10, 11)}
        labels = [11, 33, 10, 5, 27, 12, 0, 0, 0, 13, 33]
        found = numbers_of(vocabulary_of(mapping), labels)
        assert found.magnitude.tolist() == [[0, 1.5, 0, 0.5, 1.5, 0, 0, 0, 0, 0, 1.5]]

    def test_it_is_in_its_own_unit(self):
        found = numbers_of(vocabulary_of({1: -0.25, 2: 0.25}), [1, 2])
        assert (found.unit.tolist(), found.place.tolist()) == ([[1.0, 1.0]], [[0, 0]])

    def test_rows_without_one_are_as_before(self):
        labels = torch.tensor([[1, 2, 59, 3], [4, -100, 5, 6]])
        plain, mixed = (
            NTLCrossEntropyLoss(vocabulary_of(mapping), HLGauss(1.0)).prepare(labels).numbers
            for mapping in (DIGITS, MIXED)
        )
        assert_identical(plain, mixed)


class TestTargets:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
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

    @pytest.mark.parametrize(("scale", "sigma"), [(1, 5.0), (1 / 999, 5 / 999)])
    def test_a_thousand_coordinates_share_it_by_their_distance(self, scale, sigma):
        mapping = {400 + i: i * scale for i in range(1000)}
        vocabulary = NumberVocabulary.from_mapping(mapping, vocab_size=1500)
        loss = NTLCrossEntropyLoss(vocabulary, HLGauss(sigma), reduction="sum")
        targets = loss.targets(torch.tensor([[412, 900, 740, 477]]))
        assert ((targets.weights > 1e-5).sum(-1)).tolist() == [[34, 43, 43, 43]]
        assert targets.token_ids[0, :, 0].tolist() == [412, 900, 740, 477]

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
        vocabulary, label = vocabulary_of(VALUES["below and above zero"]), torch.tensor([[10]])  # -20
        wanted = NTLCrossEntropyLoss(vocabulary, HLGauss(2.0)).targets(label)
        share = NTLCrossEntropyLoss(vocabulary, HLGauss(0.0, relative=0.1)).targets(label)
        wider = NTLCrossEntropyLoss(vocabulary, HLGauss(5.0))
        given = wider.targets(wider.prepare(label, sigma=torch.tensor([[2.0]])))
        for found in (share, given):
            assert_identical(found.token_ids, wanted.token_ids)
            assert_close(found.weights, wanted.weights)

    def test_digits_and_values_of_one_vocabulary_have_targets_of_their_own(self):
        logits, labels = rows_of(vocabulary_of(DIGITS | {12: 7.5}))
        labels[labels == 12] = -100
        coordinates = torch.tensor([[10, 49, 12, -100]])
        mixed = NTLCrossEntropyLoss(vocabulary_of(MIXED), HLGauss(3.0))
        for mapping, given in ((DIGITS, labels), (VALUES["coordinates"], coordinates)):
            alone = NTLCrossEntropyLoss(vocabulary_of(mapping), HLGauss(3.0))
            assert_close(mixed(logits[:, : given.shape[1]], given), alone(logits[:, : given.shape[1]], given))

    def test_a_digit_is_no_form_of_a_coordinate_of_its_value(self):
        loss, label = NTLCrossEntropyLoss(vocabulary_of(MIXED), HLGauss(2.0)), torch.tensor([[13]])
        logits = torch.full((2, 1, 1, SIZE), -20.0)
        logits[0, ..., 14] = logits[1, ..., 4] = 0.0  # the coordinate 4, and the digit
        assert loss(logits[0], label) < loss(logits[1], label) - 3

    def test_it_works_compiled_and_in_functions(self):
        vocabulary = vocabulary_of(MIXED)
        logits, labels = rows_of(vocabulary)
        loss = NTLCrossEntropyLoss(vocabulary, HLGauss(2.0))
        prepared, given = loss.prepare(labels), logits.clone().requires_grad_()
        loss(given, labels).backward()
        by_function = torch.func.grad(lambda some: loss(some, prepared))(logits)
        assert_close(by_function, given.grad, TWO_PATHS)
        compiled = torch.compile(loss, backend="eager")(logits, prepared)
        assert_close(compiled, loss(logits, labels), TWO_PATHS)


@pytest.mark.parametrize("criterion", ["ntl_was", "crps", "ntl_mse"])
def test_units_of_hundreds_are_divided_by_their_range(criterion):
    values = {i: 10 * i - 250 for i in range(50)}
    with pytest.raises(ValueError, match=r"\(value \+ 250\) / 490"):
        NTLCrossEntropyLoss(vocabulary_of(values), criterion)
    divided = {i: (value + 250) / 490 for i, value in values.items()}
    assert NTLCrossEntropyLoss(vocabulary_of(divided), criterion) is not None


class TestTokenizers:
    @pytest.mark.parametrize("make", [tiny_tokenizers.byte_level, tiny_tokenizers.sentence_piece])
    def test_added_tokens_are_levels_in_every_text(self, make):
        tokenizer = make()
        names = {f"<loc{i:04d}>": i for i in range(30)}
        tokenizer.add_tokens([*names])
        vocabulary = NumberVocabulary.from_levels(tokenizer, names)
        assert vocabulary.distinct_values == tuple(range(30))
        labels = tokenizer("<loc0012><loc0003> 42 <loc0029>", return_tensors="pt")["input_ids"]
        loss = NTLCrossEntropyLoss(vocabulary, HLGauss(2.0))
        found = LabelNumbers.unpack(loss.prepare(labels).numbers)
        assert found.magnitude[found.starts > 0].tolist() == [12, 3, 29]

    def test_words_of_a_score_have_their_values(self):
        tokenizer = tiny_tokenizers.word_level()
        words = [text for text in tokenizer.get_vocab() if text.isalpha()][:3]
        vocabulary = NumberVocabulary.from_levels(tokenizer, dict(zip(words, (-1, 0, 5), strict=True)))
        assert len(vocabulary.value_tokens) == len(vocabulary.tokens)
        found = numbers_of(vocabulary, tokenizer(words)["input_ids"][0] * 2)
        assert found.starts.sum() == 2


class TestReading:
    @pytest.mark.parametrize("kind", ["t5", "llama"])
    @pytest.mark.parametrize("name", ["coordinates", "irregular", "of two tokens each", "one"])
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

    def test_a_range_leaves_the_other_tokens_out(self):
        model, vocabulary = make_model("llama", SIZE), vocabulary_of(VALUES["coordinates"])
        found = number_quantiles(model, batch_of([[3, 4]]), vocabulary, (0.01, 0.99), limits=Limits(10, 12.5))
        assert bool(((found.values >= 10) & (found.values <= 12)).all())
        assert 0 < float(found.ends) < 1

    def test_a_format_reads_the_digits_of_a_mixed_vocabulary(self):
        model, mixed = make_model("llama", SIZE), vocabulary_of(MIXED)
        given = batch_of([[3, 4]]), (0.1, 0.5), NumberFormat(2)
        found, wanted = (
            number_quantiles(model, given[0], vocabulary, *given[1:])
            for vocabulary in (mixed, vocabulary_of(DIGITS))
        )
        assert_identical(found.values, wanted.values)

    def test_read_number_takes_the_vocabulary(self):
        tokenizer = tiny_tokenizers.byte_level()
        names = {f"<loc{i:04d}>": i for i in range(30)}
        tokenizer.add_tokens([*names])
        vocabulary = NumberVocabulary.from_levels(tokenizer, names)
        model = make_model("llama", len(tokenizer))
        for prompt in ("7", "7 ", "It is <loc0003>"):
            reading = read_number(model, tokenizer, Question(prompt, template=None), vocabulary=vocabulary)
            inputs = tokenizer(prompt, return_tensors="pt")
            wanted = number_quantiles(model, {"input_ids": inputs["input_ids"]}, vocabulary)
            assert [reading.low, reading.median, reading.high] == wanted.values[0].tolist()


def test_the_first_numbers_of_a_trainer_are_those_of_the_tokens(tmp_path):
    # A training, because what a trainer logs of its first batch is what a user sees.
    vocabulary = NumberVocabulary.from_mapping({5 + i: i for i in range(40)}, cases.VOCAB)
    trainer = cases.trainer_for(cases.llama(), tmp_path)
    labels = [1, 5 + 12, 5 + 39, 5 + 7]
    trainer.train_dataset = [{"input_ids": labels, "labels": labels}] * cases.ROWS
    handle = make_number_aware(trainer, HLGauss(2.0), vocabulary=vocabulary)
    trainer.train()
    assert handle.first_numbers == "12 ± 2, 39 ± 2, 7 ± 2"
