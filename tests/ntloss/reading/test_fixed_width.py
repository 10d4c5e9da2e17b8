"""Quantiles of numbers of one width, against every number that the masked model can write."""

import math
import warnings

import pytest
import torch
from reading_cases import (
    assert_quantile,
    batch_of,
    fixed_model,
    fixed_width,
    make_model,
    next_token,
    texts_of,
)
from tolerances import DISTRIBUTION, approx, assert_close

import ntloss.reading.quantiles as quantiles
from ntloss import NumberVocabulary
from ntloss.numbers import NumberFormat
from ntloss.numbers.grammar import NumberReader
from ntloss.reading import Limits, number_quantiles

pytestmark = pytest.mark.filterwarnings("ignore::ntloss.reading.UnlikelyNumberWarning")

QUESTIONS = [[3, 4, 5], [10, 2, 3, 7, 6, 11, 4], [8]]
QUANTILES = (0.05, 0.3, 0.5, 0.95)
# Four digits, to keep the oracle small; 10 and 11 are text.
DIGITS = NumberVocabulary.from_mapping({2 + d: str(d) for d in range(4)} | {6: "-", 7: "."}, vocab_size=12)
WHOLE = NumberVocabulary.from_mapping({2 + d: str(d) for d in range(4)}, vocab_size=12)
# ... also with a second form of 2, a plus, and tokens of several characters.
SPELLINGS = NumberVocabulary.from_mapping(
    {2 + d: str(d) for d in range(3)} | {5: "+", 6: "-", 7: ".", 8: " 2", 9: "12", 10: ".1", 11: "-0"},
    vocab_size=13,
)
FORMATS = [NumberFormat(3), NumberFormat(1, 2), NumberFormat(2, 1, True)]


def check_against_all_numbers(model, vocabulary, width, found, allowed):
    texts = texts_of(vocabulary)
    for i, question in enumerate(QUESTIONS):
        numbers, masses = fixed_width(next_token(model, torch.tensor(question)), texts, width)
        for k, quantile in enumerate(found.levels):
            assert_quantile(found.values[i, k].item(), quantile, numbers, allowed)
        median = found.values[i, found.levels.index(0.5)].item()
        kept = found.starts[i] * found.ends[i] / (1 - found.continues[i])
        assert kept.item() == approx(masses[median], allowed, scale=0.1)


@pytest.mark.parametrize(
    ("kind", "vocabulary", "width"),
    [
        *(("llama", vocabulary, width) for vocabulary in (DIGITS, SPELLINGS) for width in FORMATS),
        *((kind, SPELLINGS, FORMATS[-1]) for kind in ("t5", "gpt2", "mamba")),
    ],
)
def test_quantiles_equal_those_of_the_enumerated_distribution(kind, vocabulary, width):
    model = make_model(kind, vocabulary.vocab_size, seed=1)
    found = number_quantiles(model, batch_of(QUESTIONS), vocabulary, QUANTILES, width)
    check_against_all_numbers(model, vocabulary, width, found, DISTRIBUTION[torch.float32])
    assert_close(found.lower, found.values)
    assert_close(found.upper, found.values)
    assert (found.values.diff(dim=-1) >= 0).all()


@pytest.mark.parametrize("kind", ["t5", "llama"])
@pytest.mark.parametrize("width", [NumberFormat(3, signed=True), None], ids=str)
def test_neither_batching_nor_the_rows_of_a_pass_change_the_quantiles(kind, width, monkeypatch):
    model = make_model(kind, DIGITS.vocab_size, seed=3).double()

    def read(questions, rows):
        monkeypatch.setattr(quantiles, "_ROWS", rows)
        limits = Limits(max_digits=2, most_texts=7)
        return number_quantiles(model, batch_of(questions), DIGITS, QUANTILES, width, limits=limits)

    together = read(QUESTIONS, 7)
    for i, question in enumerate(QUESTIONS):
        alone = read([question], 256)
        for name in ("values", "lower", "upper", "starts", "ends", "continues"):
            assert_close(getattr(together, name)[i : i + 1], getattr(alone, name))


@pytest.mark.parametrize("width", [NumberFormat(3, signed=True), None], ids=str)
def test_copies_of_long_prompts_caches_are_run_few_at_a_time(width, monkeypatch):
    model = make_model("t5", DIGITS.vocab_size, seed=3)
    rows: list[int] = []
    model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    batch = batch_of(QUESTIONS)
    monkeypatch.setattr(quantiles, "_CACHED", 3 * batch["input_ids"].shape[1])
    number_quantiles(model, batch, DIGITS, format=width, limits=Limits(max_digits=3, most_texts=4))
    assert max(rows) <= 4


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_every_answer_starts_with_the_prefix(kind):
    model = make_model(kind, DIGITS.vocab_size)
    found = number_quantiles(
        model, batch_of(QUESTIONS[:1]), DIGITS, (0.5,), NumberFormat(2), prefix_ids=[10, 11]
    )
    behind = next_token(model, torch.tensor(QUESTIONS[0]))
    numbers, _ = fixed_width(lambda written: behind([10, 11, *written]), texts_of(DIGITS), NumberFormat(2))
    assert_quantile(found.values.item(), 0.5, numbers, DISTRIBUTION[torch.float32])


def test_the_prompt_runs_once_and_quantiles_share_prefixes():
    model = make_model("llama", WHOLE.vocab_size)
    calls: list[int] = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(kwargs["input_ids"].shape[-1]), with_kwargs=True
    )
    levels = [(k + 0.5) / 40 for k in range(40)]
    found = number_quantiles(model, batch_of(QUESTIONS), WHOLE, levels, NumberFormat(3))
    assert calls[0] == 7  # tokens of the longest question
    assert len(calls) == found.passes == 4
    # 4 first digits and 16 pairs of digits of each question are all that there are.
    assert found.rows <= 3 * (1 + 4 + 16 + 1)


def test_quantiles_are_nan_if_the_model_rules_out_every_number():
    model = make_model("t5", DIGITS.vocab_size)
    head = torch.nn.Linear(16, DIGITS.vocab_size)
    torch.nn.init.zeros_(head.weight)
    with torch.no_grad():
        head.bias.zero_()[2:8] = -torch.inf
    model.lm_head = head
    for width in (NumberFormat(3), NumberFormat(1, 1, True), None):
        found = number_quantiles(model, batch_of(QUESTIONS), DIGITS, format=width)
        for table in (found.values, found.lower, found.upper, found.mean):
            assert table.isnan().all()
        assert not found.starts.any()


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_what_follows_the_median_is_what_the_number_goes_on_with(kind):
    model = make_model(kind, DIGITS.vocab_size, seed=1)
    found = number_quantiles(model, batch_of(QUESTIONS), DIGITS, format=NumberFormat(2))
    for i, question in enumerate(QUESTIONS):
        behind = next_token(model, torch.tensor(question))
        text = f"{found.values[i, 1]:02.0f}"
        written = [2 + int(digit) for digit in text]
        first, second = (
            sum(math.exp(behind(ids)[token]) for token in range(2, 6)) for ids in ([], written[:1])
        )
        # Two tokens after the digits, which are as many as decide it here.
        further = sum(
            share * (changes(text, piece) or sum(p * changes(text, piece + after) for after, p in longer))
            for piece, share, longer in after_two_tokens(behind, written)
        )
        assert found.starts[i].item() == approx(first)
        assert found.continues[i].item() == approx(further, scale=1.0, tolerance=0.1)
        assert found.ends[i].item() == approx(second * (1 - further), scale=1.0, tolerance=0.1)


def after_two_tokens(behind, written):
    for token, piece in DIGITS.pieces.items():
        logs = behind([*written, token])
        longer = [(text, math.exp(logs[after])) for after, text in DIGITS.pieces.items()]
        yield piece, math.exp(behind(written)[token]), longer


def changes(text, more):
    return NumberReader().read(text + more)[:2] != NumberReader().read(text)[:2]


def says(model, digits, width, **options):
    """The reading, and its warnings."""
    prompt = {"input_ids": torch.tensor([[7]])}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read = number_quantiles(model, prompt, digits, format=width, **options)
    return read, [str(each.message) for each in caught]


def test_a_number_that_hardly_starts_or_has_another_width_is_a_warning_of_its_own():
    probabilities = torch.full((4, 8), 1e-4)  # after each of: text, a digit, a comma, a space
    model = fixed_model(probabilities, {0: 1, 1: 1, 2: 2, 3: 3})
    mapping = {0: "1", 1: "2", 2: ",", 3: " ", 4: ".5"}
    digits = NumberVocabulary.from_mapping(mapping, vocab_size=8)
    probabilities[0, 3] = probabilities[3, 0] = 1.0
    probabilities[1, 1], probabilities[1, 7] = 0.5, 0.5
    _, (message,) = says(model, digits, NumberFormat(1))
    assert "another token" in message
    read, (message,) = says(model, digits, NumberFormat(1), prefix_ids=[3])
    assert "further digits" in message
    assert read.starts.item() > 0.99
    assert read.continues.item() == approx(0.5, 0.01)
    # A width that is too large is not a prompt that ends in the wrong place.
    probabilities[1, 1], probabilities[1, 7] = 0.02, 0.98
    read, (message,) = says(model, digits, NumberFormat(3), prefix_ids=[3])
    assert "fewer digits" in message
    assert read.starts.item() > 0.99
    assert read.ends.item() < 0.01
    probabilities[1, :7], probabilities[1, 7] = 0.0, 1.0
    assert says(model, digits, NumberFormat(1), prefix_ids=[3])[1] == []


def test_a_signed_number_may_begin_with_a_space_that_only_a_sign_is_joined_with():
    # As many tokenizers write: ` -5` is ` -`, `5`, and ` 5` is ` `, `5`.
    mapping = {0: "5", 1: "7", 2: " -", 3: " "}
    digits = NumberVocabulary.from_mapping(mapping, vocab_size=5)
    probabilities = torch.full((3, 5), 1e-9)  # after each of: text, a space, a sign
    probabilities[0, 2], probabilities[0, 3], probabilities[0, 4] = 0.3, 0.5, 0.2
    probabilities[1, 1], probabilities[2, 0] = 1.0, 1.0
    model = fixed_model(probabilities, {3: 1, 2: 2})
    prompt = {"input_ids": torch.tensor([[4]])}
    read = number_quantiles(model, prompt, digits, (0.2, 0.5), NumberFormat(1, signed=True))
    assert read.values.tolist() == [[-5.0, 7.0]]
    assert read.starts.item() == approx(0.8)


@pytest.mark.parametrize(
    ("tokens", "options", "named"),
    [
        ({2: "1"}, {"format": NumberFormat(12, 9)}, "digits=12, decimals=9"),
        ({2: "12", 3: "34"}, {"format": NumberFormat(3)}, "cannot write numbers of 3 digits"),
        ({2: "1", 3: "2"}, {"format": NumberFormat(1, 1)}, "a point and 1 decimals"),
        ({2: "1", 3: "2", 4: "+"}, {"format": NumberFormat(1, signed=True)}, "no minus sign"),
    ],
)
def test_impossible_options_are_errors(tokens, options, named):
    vocabulary = NumberVocabulary.from_mapping(tokens, vocab_size=12)
    with pytest.raises(ValueError, match=named):
        number_quantiles(make_model("t5", 12), batch_of(QUESTIONS), vocabulary, **options)


def test_tokens_that_lead_to_a_dead_end_are_masked():
    # Behind "1" or "2", a number of three digits needs "34"; two tokens of two digits are too long.
    vocabulary = NumberVocabulary.from_mapping({2: "1", 3: "2", 4: "34"}, vocab_size=12)
    model = make_model("llama", 12)
    found = number_quantiles(model, batch_of(QUESTIONS), vocabulary, QUANTILES, format=NumberFormat(3))
    check_against_all_numbers(model, vocabulary, NumberFormat(3), found, DISTRIBUTION[torch.float32])


def test_unsupported_models_and_inputs_are_errors():
    model, inputs = make_model("llama", DIGITS.vocab_size), batch_of(QUESTIONS)
    with pytest.raises(TypeError, match="return_tensors='pt'"):
        number_quantiles(model, inputs["input_ids"], DIGITS, format=NumberFormat(3))
    with pytest.raises(TypeError, match="labels"):
        number_quantiles(model, {**inputs, "labels": inputs["input_ids"]}, DIGITS, format=NumberFormat(3))
    with pytest.raises(ValueError, match="padding_side = 'left'"):
        number_quantiles(model, batch_of(QUESTIONS, "right"), DIGITS, format=NumberFormat(3))
    with pytest.raises(ValueError, match=r"call model\.eval"):
        number_quantiles(model.train(), inputs, DIGITS, format=NumberFormat(3))
    model.eval()
    with pytest.raises(ValueError, match="12 wide"):
        number_quantiles(model, inputs, SPELLINGS, format=NumberFormat(3))
