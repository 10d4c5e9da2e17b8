"""The fixed-width walk inside of `generate`."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from decoding_cases import END, batch_of, make_model, texts_of
from torch import Tensor

from ntloss import NumberVocabulary
from ntloss.decoding import QuantileLogitsProcessor, number_quantiles
from ntloss.numbers import NumberFormat

pytestmark = pytest.mark.filterwarnings("ignore::ntloss.decoding.UnlikelyNumberWarning")

QUESTIONS = [[3, 4, 5], [10, 2, 3, 7, 6, 11, 4], [8]]
DIGITS = NumberVocabulary.from_mapping({2 + d: str(d) for d in range(4)} | {6: "-", 7: "."}, vocab_size=12)
FORMATS = [NumberFormat(3), NumberFormat(2, 1, True)]


def generate(model: Any, inputs: dict[str, Tensor], processor: Any, **options: Any) -> list[float]:
    """The numbers that it writes."""
    sequences = model.generate(**inputs, max_new_tokens=9, logits_processor=[processor], **options)
    texts = texts_of(DIGITS)
    start = processor.prompt_length
    rows = [row[: row.index(END)] for row in sequences[:, start:].tolist()]
    return [float("".join(texts[token] for token in row)) for row in rows]


def processor_for(model: Any, inputs: dict[str, Tensor], quantile: float, width: NumberFormat) -> Any:
    length = 1 if model.config.is_encoder_decoder else inputs["input_ids"].shape[-1]
    return QuantileLogitsProcessor(DIGITS, quantile, width, prompt_length=length, eos_token_id=END)


@pytest.mark.parametrize("width", FORMATS, ids=str)
@pytest.mark.parametrize("kind", ["t5", "llama", "gpt2", "mamba"])
def test_generate_writes_the_quantiles_of_number_quantiles(kind: str, width: NumberFormat) -> None:
    model, inputs = make_model(kind, DIGITS.vocab_size, seed=1).double(), batch_of(QUESTIONS)
    for quantile in (0.1, 0.5, 0.9):
        processor = processor_for(model, inputs, quantile, width)
        walked = number_quantiles(model, inputs, DIGITS, (quantile,), width).values.squeeze(-1)
        assert generate(model, inputs, processor) == walked.tolist()


def test_a_processor_can_be_reused() -> None:
    model = make_model("t5", DIGITS.vocab_size, seed=1)
    inputs, other = batch_of(QUESTIONS), batch_of([[5, 3], [9]])
    processor = processor_for(model, inputs, 0.3, NumberFormat(3))
    first = generate(model, inputs, processor)
    assert len(generate(model, other, processor)) == 2
    assert generate(model, inputs, processor) == first


def test_rows_of_a_batch_keep_separate_states() -> None:
    # One row writes a minus, the other none, so that they are at different places afterwards.
    vocabulary = NumberVocabulary.from_mapping({0: "1", 1: "2", 2: "-"}, vocab_size=4)
    processor = QuantileLogitsProcessor(
        vocabulary, 0.3, NumberFormat(1, signed=True), prompt_length=2, eos_token_id=3
    )
    probabilities = torch.tensor([[0.1, 0.1, 0.8, 0.0], [0.2, 0.7, 0.1, 0.0]])
    prompt = torch.zeros(2, 2, dtype=torch.int64)
    written = processor(prompt, probabilities.log()).argmax(-1)
    assert written.tolist() == [2, 1]  # of the second, 0.2 remains of 0.9: 0.2 / 0.9 lies below it
    longer = torch.cat([prompt, written[:, None]], dim=-1)
    written = processor(longer, torch.tensor([[0.4, 0.6, 0, 0]] * 2).log())
    # Below a minus, 2 comes before 1; 0.3 / 0.8 lies in it. The other row ends.
    assert written.argmax(-1).tolist() == [1, 3]


def test_two_likely_spellings_of_a_digit_are_an_error() -> None:
    vocabulary = NumberVocabulary.from_mapping({0: "1", 1: "2", 2: " 2", 3: "3"}, vocab_size=5)
    processor = QuantileLogitsProcessor(vocabulary, 0.5, NumberFormat(1), prompt_length=1, eos_token_id=4)
    prompt = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="row 0 can write its number with and without"):
        processor(prompt, torch.tensor([[0.4, 0.1, 0.2, 0.3, 0.0]]).log())
    # The tokens' probabilities are added: 1 has 0.4, 2 has 0.3, of which 0.002 is not written.
    written = processor(prompt, torch.tensor([[0.4, 0.002, 0.298, 0.3, 0.0]]).log())
    assert written.argmax().item() == 2


@pytest.mark.parametrize(("plus", "bare", "token"), [(0.5, 0.001, 2), (0.001, 0.5, 0)])
def test_a_positive_number_is_written_with_a_plus_if_the_model_writes_one(
    plus: float, bare: float, token: int
) -> None:
    vocabulary = NumberVocabulary.from_mapping({0: "1", 1: "-", 2: "+"}, vocab_size=4)
    processor = QuantileLogitsProcessor(
        vocabulary, 0.9, NumberFormat(1, signed=True), prompt_length=1, eos_token_id=3
    )
    prompt = torch.zeros(1, 1, dtype=torch.int64)
    assert processor(prompt, torch.tensor([[bare, 0.3, plus, 0.0]]).log()).argmax().item() == token


def test_a_plus_beside_no_sign_is_an_error() -> None:
    vocabulary = NumberVocabulary.from_mapping({0: "1", 1: "-", 2: "+"}, vocab_size=4)
    processor = QuantileLogitsProcessor(
        vocabulary, 0.9, NumberFormat(1, signed=True), prompt_length=1, eos_token_id=3
    )
    prompt = torch.zeros(2, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="row 1 can write its number with and without a plus"):
        processor(prompt, torch.tensor([[0.7, 0.3, 0.0, 0.0], [0.3, 0.3, 0.4, 0.0]]).log())


def test_a_row_that_rules_out_every_number_ends() -> None:
    processor = QuantileLogitsProcessor(DIGITS, 0.5, NumberFormat(2), prompt_length=1, eos_token_id=END)
    scores = torch.zeros(1, 12)
    scores[:, 2:8] = -torch.inf
    assert processor(torch.zeros(1, 1, dtype=torch.int64), scores).argmax().item() == END


@pytest.mark.parametrize(
    "options", [{"num_beams": 2}, {"do_sample": True}, {"do_sample": True, "top_k": 1}], ids=str
)
@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_beams_and_sampling_are_refused(kind: str, options: dict[str, Any]) -> None:
    model, inputs = make_model(kind, DIGITS.vocab_size), batch_of(QUESTIONS)
    with pytest.raises(ValueError, match="num_beams=1 and do_sample=False"):
        generate(model, inputs, processor_for(model, inputs, 0.5, NumberFormat(3)), **options)


def test_sampling_that_the_models_own_settings_ask_for_is_refused() -> None:
    model, inputs = make_model("llama", DIGITS.vocab_size), batch_of(QUESTIONS)
    model.generation_config.do_sample = True
    with pytest.raises(ValueError, match="do_sample=True: the processor chooses"):
        generate(model, inputs, processor_for(model, inputs, 0.5, NumberFormat(3)))
    assert generate(model, inputs, processor_for(model, inputs, 0.5, NumberFormat(3)), do_sample=False)


def test_rows_that_were_sampled_or_reordered_are_refused() -> None:
    processor = QuantileLogitsProcessor(DIGITS, 0.5, NumberFormat(2), prompt_length=1, eos_token_id=END)
    prompt, scores = torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, 12)
    scores[0, 2] = scores[1, 4] = 9.0  # the rows write 0 and 2
    written = processor(prompt, scores).argmax(-1)[:, None]
    with pytest.raises(ValueError, match="do_sample=False"):
        processor(torch.cat([prompt, written.flip(0)], dim=-1), scores)
    processor(prompt, scores)
    with pytest.raises(ValueError, match="Beams cannot be used"):
        processor(torch.cat([prompt, written], dim=-1)[:1], scores[:1])


@pytest.mark.parametrize(
    ("tokens", "options", "message"),
    [
        ({0: "1"}, {"quantile": 0.0}, "above 0 and below 1"),
        ({0: "1", 1: "12"}, {}, "digit_level=True"),
        ({0: "1", 1: "-1", 2: "-"}, {"format": NumberFormat(2, signed=True)}, "digit_level=True"),
        ({0: "1"}, {"format": NumberFormat(2, 1)}, "cannot write"),
    ],
)
def test_a_format_that_the_vocabulary_cannot_write_is_an_error(
    tokens: Any, options: dict[str, Any], message: str
) -> None:
    vocabulary = NumberVocabulary.from_mapping(tokens, vocab_size=3)
    given: dict[str, Any] = {"quantile": 0.5, "format": NumberFormat(2), **options}
    with pytest.raises(ValueError, match=message):
        QuantileLogitsProcessor(vocabulary, prompt_length=1, eos_token_id=2, **given)


def test_a_wrong_prompt_length_is_an_error() -> None:
    model, inputs = make_model("llama", DIGITS.vocab_size), batch_of(QUESTIONS)
    processor = QuantileLogitsProcessor(DIGITS, 0.5, NumberFormat(3), prompt_length=1, eos_token_id=END)
    with pytest.raises(ValueError, match="Pass prompt_length="):
        generate(model, inputs, processor)


def test_the_processor_imports_without_transformers() -> None:
    import subprocess

    code = "import sys; sys.modules['transformers'] = None; import ntloss.decoding"
    subprocess.run([sys.executable, "-c", code], check=True)
