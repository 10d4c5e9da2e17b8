"""The distribution of numbers of any length, against every token sequence of a tiny vocabulary."""

import itertools
import math
from dataclasses import replace
from random import Random

import pytest
import torch
from reading_cases import any_length, assert_quantile, batch_of, fixed_model, make_model, next_token
from tolerances import DISTRIBUTION, approx, assert_repeats

from ntloss import NumberVocabulary
from ntloss.numbers import parse_numbers
from ntloss.numbers.grammar import NumberReader
from ntloss.numbers.texts import TokenTexts
from ntloss.reading import Limits, number_quantiles
from ntloss.reading.any_length import Numbers, numbers_after, options_of, summarize
from ntloss.reading.torch_model import TorchModel

QUESTIONS = [[3, 4, 5], [10, 2, 3, 7, 6, 11, 4], [8]]
LEVELS = (0.05, 0.3, 0.5, 0.95)
# Few, because every sequence of them is tried; 11 is text.
SPELLINGS = NumberVocabulary.from_mapping(
    {2: "0", 3: "1", 4: "-", 5: ".", 6: " 2", 7: "12", 8: "1.", 9: ",", 10: "1e3"}, vocab_size=12
)
ALL = 10**6  # texts, so that none is sampled
CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore::ntloss.reading.UnlikelyNumberWarning")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kind", ["t5", "llama", pytest.param("mamba", marks=pytest.mark.slow)])
def test_quantiles_equal_those_of_the_enumerated_numbers(kind):
    model, questions = make_model(kind, SPELLINGS.vocab_size), QUESTIONS[:2]
    enumerated = questions if kind == "llama" else questions[:1]  # the padded one
    found = number_quantiles(
        model,
        batch_of(questions),
        SPELLINGS,
        LEVELS,
        limits=Limits(max_digits=2, most_texts=ALL),
    )
    allowed = DISTRIBUTION[torch.float32]
    for i, question in enumerate(enumerated):
        numbers, starts, parts = any_length(next_token(model, torch.tensor(question)), SPELLINGS, 2)
        total = sum(numbers.values())
        assert found.starts[i].item() == approx(starts, allowed)
        assert found.ends[i].item() == approx(total / starts, allowed)
        assert found.continues[i].item() == approx(parts / total, allowed, scale=1.0)
        assert found.mean[i].item() == approx(
            sum(x * p for x, p in numbers.items()) / total, allowed, scale=10
        )
        for k, level in enumerate(LEVELS):
            assert_quantile(found.values[i, k].item(), level, numbers, allowed)


def test_the_estimated_probability_of_a_number_is_at_most_1():
    of_one, weights = torch.zeros(2, dtype=torch.int64), torch.tensor([0.6, 0.45], dtype=torch.float64)
    tied, noise = torch.zeros(2, dtype=torch.bool), torch.zeros(1, dtype=torch.float64)
    numbers = Numbers(of_one, torch.tensor([1.0, 2.0]).double(), weights, tied, noise)
    found = summarize(numbers, torch.tensor([0.5], dtype=torch.float64), Limits())
    assert found["starts"].item() == 1
    assert found["ends"].item() == approx(1.0)


def test_samples_are_fair_and_their_bounds_hold():
    model = make_model("llama", SPELLINGS.vocab_size).double()
    options, few = options_of(SPELLINGS, NumberReader(), CPU), Limits(max_digits=2, most_texts=6)
    question, below, started, inside = QUESTIONS[0], [], [], 0
    exact, starts, _ = any_length(next_token(model, torch.tensor(question)), SPELLINGS, 2)
    total = sum(exact.values())
    median = min(x for x in exact if sum(p for y, p in exact.items() if y <= x) >= total / 2)
    with torch.no_grad():
        root = TorchModel(model).continuations(batch_of([question]), {})
        for seed in range(60):
            shifts = torch.rand(16, generator=seeded(seed), dtype=torch.float64)
            numbers = numbers_after(root, options, few, shifts)
            below.append(numbers.weights[numbers.values <= median].sum().item())
            started.append(numbers.weights.sum().item())
            found = summarize(numbers, torch.tensor([0.5], dtype=torch.float64), Limits())
            inside += found["lower"].item() <= median <= found["upper"].item()
    assert sum(started) / 60 == approx(starts, 0.05)
    assert sum(below) / 60 == approx(sum(p for x, p in exact.items() if x <= median), 0.1)
    # Of 60 intervals that hold with 95 %, fewer than 52 do with a probability of 0.3 %.
    assert inside >= 52


def test_bounds_of_a_reading_are_in_the_range_that_is_read():
    model = make_model("llama", SPELLINGS.vocab_size)
    levels, most = (0.001, 0.999), {"max_digits": 2, "most_texts": 4}
    free = number_quantiles(model, batch_of(QUESTIONS), SPELLINGS, levels, limits=Limits(**most))
    # Not all numbers are read, so that smaller or larger ones than a quantile may be missed.
    assert (free.lower[:, 0].isinf() & free.upper[:, 1].isinf()).any()
    read = number_quantiles(model, batch_of(QUESTIONS), SPELLINGS, levels, limits=Limits(1, 9, **most))
    assert ((read.lower >= 1) & (read.lower <= read.values)).all()
    assert ((read.upper <= 9) & (read.upper >= read.values)).all()


def test_readings_differ_only_with_a_generator_of_ones_own():
    model = make_model("llama", SPELLINGS.vocab_size)

    def read(seed=None):
        generator = None if seed is None else seeded(seed)
        found = number_quantiles(
            model,
            batch_of(QUESTIONS),
            SPELLINGS,
            generator=generator,
            limits=Limits(max_digits=4, most_texts=8),
        )
        return found.mean

    assert read(2).tolist() != assert_repeats(read).tolist()


def test_a_reading_asks_the_vocabulary_whether_commas_group():
    model = make_model("llama", SPELLINGS.vocab_size)

    def mean(vocabulary, thousands=None):
        return number_quantiles(
            model, batch_of(QUESTIONS), vocabulary, limits=Limits(max_digits=4, thousands=thousands)
        ).mean.tolist()

    grouped, separate = mean(replace(SPELLINGS, thousands=",")), mean(replace(SPELLINGS, thousands=""))
    assert grouped != separate
    assert mean(SPELLINGS, ",") == mean(replace(SPELLINGS, thousands=""), ",") == approx(grouped)
    assert mean(SPELLINGS, "") == approx(separate)


def test_a_model_that_never_ends_a_number_takes_a_bounded_number_of_passes():
    ones = torch.zeros(1, 4)
    ones[0, 0] = 1.0
    digits = NumberVocabulary.from_mapping({0: "1", 1: "."}, vocab_size=4)
    prompt = {"input_ids": torch.tensor([[3]])}
    read = number_quantiles(fixed_model(ones, {}), prompt, digits, (0.5,), limits=Limits(max_digits=12))
    assert read.passes == 13
    assert read.values.isnan().all()
    assert read.ends.item() == 0
    # A point, behind which digits are cut off.
    ones = torch.tensor([[0.0, 1, 0, 0], [1.0, 0, 0, 0]])
    read = number_quantiles(fixed_model(ones, {1: 1, 0: 1}), prompt, digits, (0.5,))
    assert read.values.item() == approx(1 / 9, 1e-9)


def sure_of(vocabulary, rows):
    """A model that is sure to write each row of tokens, and then text; its vocabulary and prompts."""
    ends = list(itertools.accumulate(len(row) + 2 for row in rows))
    # Each token of each row has an id of its own, behind that of the row's prompt.
    ids = [range(end - len(row) - 1, end - 1) for row, end in zip(rows, ends, strict=True)]
    own = [*zip(itertools.chain(*ids), itertools.chain(*rows), strict=True)]
    of_token = {token.token_id: token for token in vocabulary.tokens}
    pieces = {new: vocabulary.pieces[i] for new, i in own if i in vocabulary.pieces}
    letter_ids = tuple(new for new, i in own if i in vocabulary.letter_ids)
    chained = NumberVocabulary(
        ends[-1],
        tuple(replace(of_token[i], token_id=new) for new, i in own if i in of_token),
        _texts=TokenTexts(pieces, {}, ends[-1], letter_ids),
    )
    probabilities = torch.eye(ends[-1]).roll(1, -1)
    last = torch.tensor(ends) - 1
    probabilities[last] = torch.eye(ends[-1])[last]
    model = fixed_model(probabilities, {i: i for i in range(ends[-1])})
    return model, {"input_ids": torch.tensor([[own_ids[0] - 1] for own_ids in ids])}, chained


def read_rows(vocabulary, rows, **options):
    model, prompts, chained = sure_of(vocabulary, rows)
    found = number_quantiles(model, prompts, chained, (0.5,), **options)
    assert found.starts.tolist() == approx([1.0] * len(rows))
    return found


def texts_with_a_number_in_front(seed, count):
    random = Random(seed)
    parts = [*"0123456789.,eE-+x%) $\u2212", "12", "000", "2024", "e3", ".5", " It", "km", "rd", ", ", ". "]
    texts = [f"{random.randrange(1000)}.{random.randrange(10)}. It is so." for _ in range(count)]
    for _ in range(count):
        sign, number = random.choice(["", "-", "$"]), random.choice(["9", "047", "1,250", "0", ".5", "3e3"])
        texts.append(sign + number + "".join(random.choices(parts, k=random.randrange(6))))
    return texts


@pytest.mark.parametrize("name", ["t5", "gpt2", "smollm2"])
@pytest.mark.filterwarnings("ignore:.*tokens count as numbers")
def test_numbers_of_real_tokenizers_are_read_as_metrics_read_them(name, real_tokenizer, request):
    tokenizer = request.getfixturevalue("smollm2")[0] if name == "smollm2" else real_tokenizer(name)
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, tokens="numbers")
    given = texts_with_a_number_in_front(seed=len(name), count=50)
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in given]
    written = [tokenizer.convert_tokens_to_string(tokenizer.convert_ids_to_tokens(row)) for row in rows]
    expected = [next(iter(parse_numbers(text)), math.inf) for text in written]  # some begin with a name
    kept = [i for i, number in enumerate(expected) if abs(number) < 1e300]
    assert len(kept) > 80
    read = read_rows(vocabulary, [rows[i] for i in kept], limits=Limits(max_digits=300)).values[:, 0].tolist()
    wrong = [
        (written[i], r, expected[i]) for i, r in zip(kept, read, strict=True) if r != approx(expected[i])
    ]
    assert not wrong


def test_a_reading_that_follows_every_likely_text_says_that_it_is_exact():
    numbers = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.0, 0.0, 0.0, 1.0]])
    digits = NumberVocabulary.from_mapping({0: "1", 1: "2", 2: "3"}, vocab_size=4)
    prompt = {"input_ids": torch.tensor([[3]])}
    read = number_quantiles(fixed_model(numbers, {0: 1, 1: 1, 2: 1}), prompt, digits)
    assert read.values.tolist() == read.lower.tolist() == read.upper.tolist() == [[1.0, 1.0, 3.0]]
    assert (read.mean.item(), read.mean_error.item()) == (approx(1.7), 0.0)
