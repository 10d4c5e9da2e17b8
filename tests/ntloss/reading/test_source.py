"""Engines in this process, which a function asks, and what a reading keeps if one fails."""

import pytest
import tiny_tokenizers as tiny
import torch
from form_server import TEXTS
from reading_cases import batch_of, make_model
from tolerances import DISTRIBUTION, approx, assert_close

import ntloss.reading.prompts as prompts
from ntloss import NumberVocabulary
from ntloss.numbers import NumberFormat
from ntloss.reading import (
    Limits,
    Question,
    from_function,
    number_quantiles,
    read_number,
    read_numbers,
    read_scores,
)

pytestmark = pytest.mark.filterwarnings("ignore::ntloss.reading.UnlikelyNumberWarning")
QUESTIONS = [[16, 17], [21, 5, 21], [12, 16, 21, 21, 3]]
NUMBERS = {i: text for i, text in enumerate(TEXTS) if text.strip().isdigit() and not text.endswith(" ")}
VOCABULARY = NumberVocabulary.from_mapping(NUMBERS | {12: ".", 13: ",", 14: "-", 15: " "}, vocab_size=22)


def log_probs_of(model):
    @torch.no_grad()
    def log_probs(prompts, token_ids):
        rows = [model(input_ids=torch.tensor([prompt])).logits[0, -1].log_softmax(-1) for prompt in prompts]
        return torch.stack(rows)[:, token_ids]

    return log_probs


@pytest.mark.parametrize("format", [NumberFormat(3), NumberFormat(2, 1, signed=True), None], ids=str)
@pytest.mark.parametrize("given", [torch.Tensor.numpy, torch.Tensor.tolist])
def test_numbers_of_a_function_are_those_of_its_model(format, given):
    model = make_model("llama", len(TEXTS), seed=1, scale=2.0).double()
    log_probs = log_probs_of(model)
    source, limits = (
        from_function(lambda *asked: given(log_probs(*asked))),
        Limits(max_digits=2, most_texts=6),
    )
    found, in_torch = (
        number_quantiles(each, inputs, VOCABULARY, format=format, limits=limits)
        for each, inputs in ((source, QUESTIONS), (model, batch_of(QUESTIONS)))
    )
    for name in ("values", "lower", "upper", "starts", "ends", "continues"):
        assert_close(getattr(found, name), getattr(in_torch, name), DISTRIBUTION)


def test_every_reading_takes_a_function():
    tokenizer = tiny.byte_level()
    model = make_model("llama", len(tokenizer)).double()
    source, limits = from_function(log_probs_of(model)), Limits(max_digits=1, most_texts=4)
    questions = [Question("a", prefill="a "), "the a"]
    width = NumberFormat(2)
    read, in_torch = (read_number(each, tokenizer, questions, format=width) for each in (source, model))
    assert [each.starts for each in read] == approx([each.starts for each in in_torch])
    scores, of_torch = (read_scores(each, tokenizer, "a", range(1, 11)) for each in (source, model))
    assert scores.probabilities == approx(of_torch.probabilities)
    of_answer, alone = (read_numbers(each, tokenizer, "a", "a 5", limits=limits) for each in (source, model))
    starts = [each.reading.starts for each in alone]
    assert [each.reading.starts for each in of_answer] == approx(starts, 0.05)  # texts are sampled
    with pytest.raises(TypeError, match="images"):
        read_number(source, tokenizer, Question("a", images=["a.png"]))


@pytest.mark.parametrize(
    "returned",
    [lambda rows, columns: torch.zeros(rows, columns + 1), lambda rows, columns: torch.ones(rows, columns)],
)
def test_what_is_no_table_of_log_probabilities_is_an_error(returned):
    source = from_function(lambda prompts, token_ids: returned(len(prompts), len(token_ids)))
    with pytest.raises(ValueError, match="log_probs"):
        number_quantiles(source, QUESTIONS, VOCABULARY)
    with pytest.raises(TypeError, match="token ids"):
        number_quantiles(source, ["a text"], VOCABULARY)


def test_an_engine_that_dies_leaves_what_was_read(monkeypatch):
    monkeypatch.setattr(prompts, "_AT_ONCE", 2)
    tokenizer = tiny.byte_level()
    log_probs = log_probs_of(make_model("llama", len(tokenizer)).double())

    def dies(asked, token_ids):
        if any(len(prompt) > 12 for prompt in asked):
            raise OSError("the engine died")
        return log_probs(asked, token_ids)

    questions, width = ["a" * 20, "a", "a" * 21, "aa"], NumberFormat(2)
    with pytest.raises(OSError, match="died") as raised:
        read_number(from_function(dies), tokenizer, questions, format=width)
    read = read_number(from_function(log_probs), tokenizer, questions, format=width)
    assert [str(each) for each in raised.value.results] == ["None", str(read[1]), "None", str(read[3])]


def test_many_questions_show_a_progress_bar_after_some_time(monkeypatch, capsys):
    pytest.importorskip("tqdm")
    tokenizer = tiny.byte_level()
    model, width = make_model("llama", len(tokenizer)), NumberFormat(1)
    read_number(model, tokenizer, ["a", "aa"], format=width)
    assert "question" not in capsys.readouterr().err
    monkeypatch.setattr(prompts, "_PATIENCE", 0.0)
    read_number(model, tokenizer, ["a", "aa"], format=width)
    assert "question" in capsys.readouterr().err
