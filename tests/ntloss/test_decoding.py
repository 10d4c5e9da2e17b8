"""Reading numbers out of distributions and generated candidates."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import CANCELLATION, ONE_COMPUTATION, TWO_PATHS, approx, assert_close
from torch import Tensor
from torch.torch_version import TorchVersion

from ntloss import NTLossDotProduct, NumberVocabulary
from ntloss.decoding import bayes_choice, number_distribution, read_generation, read_numbers

quick = settings(deadline=None, max_examples=60, derandomize=True)
DIGITS = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)

candidates = st.lists(
    st.tuples(st.integers(-20, 20).map(float), st.integers(1, 6).map(float)), min_size=1, max_size=8
)


def columns(pairs: list[tuple[float, float]]) -> tuple[Tensor, Tensor]:
    values, weights = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    return values, weights.log()


@quick
@given(candidates)
def test_each_choice_has_the_smallest_expected_cost(pairs: list[tuple[float, float]]) -> None:
    def expected(cost: Any, number: float) -> float:
        return sum(w * cost(number, v) for v, w in pairs)

    costs = {
        "mode": lambda a, b: float(a != b),
        "median": lambda a, b: abs(a - b),
        "mean": lambda a, b: (a - b) ** 2,
    }
    for choice, cost in costs.items():
        number = bayes_choice(*columns(pairs), choice).item()
        for other in [*(v for v, _ in pairs), number + 0.01, number - 0.01]:
            assert expected(cost, number) <= expected(cost, other) + CANCELLATION


@quick
@given(candidates, st.randoms(), st.floats(-1000, 1000))
def test_order_weight_level_and_invalid_candidates_do_not_matter(
    pairs: list[tuple[float, float]], random: Any, level: float
) -> None:
    changed = [*pairs, (math.nan, 3.0), (math.inf, 1.0), (7.0, 0.0)]
    random.shuffle(changed)
    values, logs = columns(changed)
    for choice in ("mode", "median", "mean", lambda a, b: (a - b).abs() + 1):
        one = bayes_choice(*columns(pairs), choice).item()
        other = bayes_choice(values, logs + level, choice).item()
        if choice == "mean":
            assert one == approx(other, CANCELLATION, scale=1)
        else:  # rounding may break a tie between two equally good numbers
            cost = (lambda a, b: a != b) if choice == "mode" else (lambda a, b: abs(a - b))
            costs = [sum(w * cost(number, v) for v, w in pairs) for number in (one, other)]
            assert costs[0] == approx(costs[1])


def test_a_custom_cost_chooses_among_the_candidates() -> None:
    values, weights = torch.tensor([1.0, 2.0, 10.0]), torch.tensor([0.5, 0.3, 0.2])
    # An underestimate costs ten times as much as an overestimate.
    number = bayes_choice(values, weights.log(), lambda p, t: torch.where(p < t, 10 * (t - p), p - t))
    assert number == 10
    assert bayes_choice(values, weights.log(), lambda p, t: (p - t).abs()) == 1


def test_rows_may_share_values_and_a_row_without_candidates_is_nan() -> None:
    values = torch.tensor([1.0, 2.0])
    logs = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0], [-math.inf, -math.inf]])
    for choice in ("mode", "median", "mean", lambda a, b: (a - b).abs()):
        assert_close(bayes_choice(values, logs, choice), torch.tensor([1, 2, math.nan]))
    with pytest.raises(ValueError, match="do not match"):
        bayes_choice(torch.zeros(3), logs)
    with pytest.raises(ValueError, match="'mode', 'median', 'mean'"):
        bayes_choice(values, logs, "mid")


def test_huge_values_do_not_overflow() -> None:
    values = torch.tensor([1e308, 1.7e308, -1e308], dtype=torch.float64)
    logs = torch.zeros(3, dtype=torch.float64)
    assert bayes_choice(values, logs, "mean").item() == approx(1.7e308 / 3)
    assert bayes_choice(values, logs, "median") == 1e308


def test_forms_of_a_value_are_merged_and_text_only_reduces_the_mass() -> None:
    vocabulary = NumberVocabulary.from_mapping({1: "7", 2: " 7", 4: "250", 5: "-3"}, vocab_size=8)
    probs = torch.tensor([0.3, 0.15, 0.15, 0.1, 0.2, 0.05, 0.03, 0.02], dtype=torch.float64)
    values, log_probs, log_mass = number_distribution(probs.log(), vocabulary)
    assert values.tolist() == [-3, 7, 250]
    expected = torch.tensor([0.05, 0.3, 0.2], dtype=torch.float64)
    assert_close(log_probs.exp(), expected / 0.55)
    assert log_mass.exp().item() == approx(0.55)
    assert read_numbers(probs.log(), vocabulary, "mode").value == 7  # although 250 is the most likely token
    assert read_numbers(probs.log(), vocabulary, "median").value == 7
    mean = read_numbers(probs.log(), vocabulary)
    assert mean.value.item() == approx((-0.15 + 2.1 + 50) / 0.55)
    assert mean.mass.item() == approx(0.55)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_mean_matches_the_published_class(dtype: torch.dtype) -> None:
    logits = torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(0)).to(dtype)
    value, mass = read_numbers(logits, DIGITS, "mean")
    yhat, nt_mass = NTLossDotProduct(DIGITS).predict_numbers(logits)
    assert value.shape == mass.shape == (2, 3)
    assert_close(value, yhat.double(), TWO_PATHS[yhat.dtype])
    assert_close(mass, nt_mass)


def test_values_that_float32_cannot_hold_are_exact() -> None:
    vocabulary = NumberVocabulary.from_mapping({0: "16777217", 1: "3"}, vocab_size=3)
    logits = torch.tensor([9.0, 0.0, 0.0])
    assert read_numbers(logits, vocabulary, "mode").value.item() == 16777217


def test_the_mean_is_differentiable() -> None:
    logits = torch.randn(4, 12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: read_numbers(z, DIGITS, "mean").value, logits)


def test_logits_of_another_width_are_an_error() -> None:
    with pytest.raises(ValueError, match="vocabulary's size"):
        read_numbers(torch.zeros(2, 13), DIGITS)


# --- generated candidates -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    texts = ["<pad>", "</s>", *"0123456789.-, ab"]
    made = Tokenizer(models.WordLevel({t: i for i, t in enumerate(texts)}, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="</s>")


@pytest.fixture(scope="module", params=["t5", "llama"])
def model(request: pytest.FixtureRequest) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

    torch.manual_seed(24)  # a seed with texts that end at different lengths
    if request.param == "t5":
        config = T5Config(
            vocab_size=18, d_model=16, d_ff=32, d_kv=8, num_layers=1, num_heads=2, decoder_start_token_id=0
        )
        return T5ForConditionalGeneration(config).eval()
    config = LlamaConfig(
        vocab_size=18, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        initializer_range=0.6, pad_token_id=0, bos_token_id=None, eos_token_id=1,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def generate(model: Any, tokenizer: Any, **options: Any) -> Any:
    torch.manual_seed(3)
    inputs = tokenizer(["12", "ab"], return_tensors="pt")  # of equal length, without padding
    inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    return model.generate(
        **inputs, max_new_tokens=6, return_dict_in_generate=True, output_scores=True, **options
    )


def test_beams_are_weighted_with_their_probability(model: Any, tokenizer: Any) -> None:
    options = {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.0}
    output = generate(model, tokenizer, **options)
    read = read_generation(output, tokenizer, "mean", 4)
    assert read.candidates.shape == read.log_weights.shape == (2, 4)
    expected = model.compute_transition_scores(output.sequences, output.scores, output.beam_indices).sum(-1)
    assert_close(read.log_weights.reshape(-1).float(), expected)
    # Without length penalty, a beam's score is its log-probability.
    assert_close(expected, output.sequences_scores)
    start = 1 if model.config.is_encoder_decoder else 2
    assert read.texts == tokenizer.batch_decode(output.sequences[:, start:], skip_special_tokens=True)
    # With the random weights of transformers 5, some beams end early.
    if TorchVersion(transformers.__version__) >= TorchVersion("5"):
        assert (output.beam_indices < 0).any()

    raw = generate(model, tokenizer, output_logits=True, **options)
    from_logits = read_generation(raw, tokenizer, "mean", 4)
    assert_close(from_logits.log_weights, read.log_weights, ONE_COMPUTATION[torch.float32])


def test_samples_have_equal_weights_or_the_models_own_probabilities(model: Any, tokenizer: Any) -> None:
    options = {"do_sample": True, "num_return_sequences": 8, "top_k": 0}
    output = generate(model, tokenizer, **options)
    assert (read_generation(output, tokenizer, "mode", 8).log_weights == 0).all()

    weighted = read_generation(output, tokenizer, "mode", 8, weights="probability").log_weights.reshape(-1)
    steps = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
    new = output.sequences[:, -steps.shape[-1] :]
    alive = ((new == 1).cumsum(-1) - (new == 1).int()) == 0  # up to and including the first end token
    assert not alive.all()  # some samples end early
    expected = torch.where(alive, steps, 0).sum(-1)
    kept = weighted > -math.inf
    assert_close(weighted[kept].float(), expected[kept])

    hot = generate(model, tokenizer, temperature=3.0, output_logits=True, **options)
    own = read_generation(hot, tokenizer, "mode", 8, weights="probability").log_weights
    hot.logits = None
    heated = read_generation(hot, tokenizer, "mode", 8, weights="probability").log_weights
    assert (own - heated).nan_to_num().abs().max() > 1e-3


def test_probability_weights_count_repeated_candidates_once() -> None:
    scores = (torch.tensor([[0.5, 0.5, 1e-9]]).log().expand(3, -1),)
    output = SimpleNamespace(sequences=torch.tensor([[2, 0], [2, 1], [2, 0]]), scores=scores, logits=None)
    vocabulary = NumberVocabulary.from_mapping({0: 4, 1: 8}, vocab_size=3)
    read = read_generation(output, vocabulary, "mean", 3, weights="probability", eos_token_id=2)
    assert read.value.item() == approx(6)
    assert read.log_weights[0, 2] == -math.inf
    assert read_generation(output, vocabulary, "mean", 3).value.item() == approx(16 / 3)


def test_tokens_after_the_end_of_a_text_are_ignored() -> None:
    sure, wild = torch.tensor([[0.0, -1e4, -1e4]]), torch.tensor([[-5.0, 0.0, 2.0]])
    end = torch.tensor([[-1e4, -1e4, 0.0]])
    output = SimpleNamespace(sequences=torch.tensor([[2, 0, 2, 1]] * 2), scores=(sure.expand(2, -1),
        end.expand(2, -1), wild.expand(2, -1)), logits=None)  # fmt: skip
    vocabulary = NumberVocabulary.from_mapping({0: 4, 1: 8}, vocab_size=3)
    read = read_generation(output, vocabulary, "mode", 2, weights="probability", eos_token_id=2)
    assert read.value == 4
    assert read.log_weights[0, 0] == 0


def test_candidates_without_a_number_are_counted_and_not_chosen(tokenizer: Any) -> None:
    rows = ["12</s>", "ab</s>", "14</s>", "-3</s>", "a.</s>", "b-</s>"]
    ids = torch.tensor([[0, *tokenizer.convert_tokens_to_ids([*row[:2], "</s>"])] for row in rows])
    read = read_generation(ids, tokenizer, "median", 3, prompt_length=1)
    assert read.value.tolist() == [12, -3]
    assert read.invalid.tolist() == [1, 2]
    nothing = read_generation(ids[4:], tokenizer, "median", 2, prompt_length=1)
    assert nothing.value.isnan().all()
    assert nothing.invalid.tolist() == [2]


def test_a_vocabulary_decodes_signs_points_and_separators_and_text_ends_a_number() -> None:
    texts = {1: "1", 2: " 2", 3: "345", 4: "-", 5: ".", 6: ",", 7: " -"}
    vocabulary = NumberVocabulary.from_mapping(texts, vocab_size=9)
    rows = torch.tensor([[4, 1, 5, 3], [1, 6, 3, 8], [1, 0, 1, 0], [1, 2, 8, 8], [0, 8, 0, 8]])
    read = read_generation(rows, vocabulary, prompt_length=0)
    assert_close(read.value, torch.tensor([-1.345, 1345, 1, 2, math.nan], dtype=torch.float64))


def test_custom_weights_and_a_custom_decoder_are_used() -> None:
    rows = torch.tensor([[3], [9]])
    weights = torch.tensor([0.2, 0.8]).log()
    read = read_generation(
        rows, lambda ids: [str(i[0]) for i in ids], "mean", 2, weights=weights, prompt_length=0
    )
    assert read.value.item() == approx(0.2 * 3 + 0.8 * 9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "prompt_length"),
        ({"num_return_sequences": 3, "prompt_length": 1}, "not a multiple"),
        ({"num_return_sequences": 2, "prompt_length": 1, "weights": "probability"}, "output_scores"),
        ({"prompt_length": 1, "weights": "even"}, "'uniform'"),
        ({"prompt_length": 1, "weights": torch.zeros(3)}, "one for each of 4"),
        ({"prompt_length": 1, "which": "middle"}, "'last'"),
    ],
)
def test_missing_and_unknown_options_are_errors(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_generation(torch.zeros(4, 3, dtype=torch.int64), DIGITS, **options)


def test_objects_that_cannot_decode_are_an_error() -> None:
    with pytest.raises(TypeError, match="batch_decode"):
        read_generation(torch.zeros(4, 3, dtype=torch.int64), "t5-base", prompt_length=1)
