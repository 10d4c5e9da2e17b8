"""`HLGauss.for_fields`: each number of an answer with the standard deviation of its field."""

import pytest
import torch
from test_soft_labels import random_logits
from tiny_tokenizers import llama_like, qwen_like
from tolerances import approx, assert_close

from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary

ANSWER = '{"size": 0.35, "threshold": [-18.5, 7], "note": "3 of 4"}'
FIELDS = {"size": [0.2, 0.4], "threshold": [-30, -10]}
STARTS = {"size": 0.055, "threshold": 5.5}


def labels_of(tokenizer, text):
    return torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])


def described(tokenizer, text, sigma):
    """The characters of the tokens that have each standard deviation."""
    found = {}
    for token, width in zip(labels_of(tokenizer, text)[0], sigma[0].tolist(), strict=True):
        if width:
            name = next(name for name, start in STARTS.items() if width == approx(start))
            found[name] = found.get(name, "") + tokenizer.decode([token]).strip()
    return found


@pytest.mark.parametrize("make", [qwen_like, llama_like])
def test_fields_are_found_in_the_text_of_labels(make):
    tokenizer = make()
    loss_fn = NTLCrossEntropyLoss(NumberVocabulary.from_tokenizer(tokenizer), HLGauss.for_fields(FIELDS))
    labels = labels_of(tokenizer, ANSWER)
    sigma = loss_fn.prepare(labels).sigma
    assert sigma.shape == labels.shape
    assert described(tokenizer, ANSWER, sigma) == {"size": "0.35", "threshold": "-18.57"}


def test_names_may_be_written_in_parts_of_characters():
    tokenizer = qwen_like()
    loss_fn = NTLCrossEntropyLoss(
        NumberVocabulary.from_tokenizer(tokenizer), HLGauss.for_fields({"温度": [1, 3], "Δt": [5, 9]})
    )
    labels = labels_of(tokenizer, "温度\uff1a12, Δt: 34")
    sigma = loss_fn.prepare(labels).sigma[0]
    texts = [tokenizer.decode([token]).strip() for token in labels[0]]
    found = [(text, width) for text, width in zip(texts, sigma.tolist(), strict=True) if width]
    assert found == [("1", approx(0.55)), ("2", approx(0.55)), ("3", approx(1.1)), ("4", approx(1.1))]


def test_the_loss_finds_them_itself_and_keeps_cross_entropy_elsewhere():
    tokenizer = qwen_like()
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
    labels = labels_of(tokenizer, ANSWER)
    logits = random_logits(*labels.shape, vocabulary.vocab_size)
    loss_fn = NTLCrossEntropyLoss(vocabulary, HLGauss.for_fields(FIELDS), reduction="none")
    found = loss_fn(logits, labels)
    sigma = loss_fn.prepare(labels).sigma
    assert_close(loss_fn(logits, loss_fn.prepare(labels, sigma=sigma)), found)
    with_one = {
        start: NTLCrossEntropyLoss(vocabulary, HLGauss(start), reduction="none")(logits, labels)
        for start in STARTS.values()
    }
    ce = torch.nn.functional.cross_entropy(logits[0], labels[0], reduction="none")[None]
    expected = ce
    for start, loss in with_one.items():
        expected = torch.where(
            torch.isclose(sigma, torch.as_tensor(start, dtype=sigma.dtype)), loss, expected
        )
    assert_close(found, expected, 1e-6)  # widths are float32


def test_answers_end_where_labels_are_ignored_and_where_sequences_do():
    vocabulary = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
    criterion = HLGauss.for_fields({"length": [10, 50], "width": [1, 3]}, by="order")
    loss_fn = NTLCrossEntropyLoss(vocabulary, criterion)
    labels = torch.tensor([[4, 2, 11, 3, -100, 5, 11, 6], [1, 11, 2, 3, 11, 4, 5, 11]])
    long, wide = 11.0, 0.55
    first = [long, long, 0, wide, 0, long, 0, wide]
    assert loss_fn.prepare(labels).sigma[0].tolist() == approx(first)
    ids = torch.tensor([[0] * 8, [0, 0, 0, 1, 1, 1, 1, 1]])
    assert loss_fn.prepare(labels, sequence_ids=ids).sigma[1].tolist() == approx(
        [long, 0, wide, long, 0, wide, wide, 0]
    )


def test_widths_of_fields_fall_to_an_eighth():
    vocabulary = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
    labels, logits = torch.tensor([[4, 2, 11, 3]]), random_logits(1, 4, 12)
    criterion = HLGauss.for_fields({"length": [10, 50], "width": [1, 3]}, by="order")
    loss_fn = NTLCrossEntropyLoss(vocabulary, criterion, reduction="none")
    for progress, share in ((0.0, 1.0), (1.0, 1 / 8), (0.5, 4.5 / 8)):
        assert criterion.anneal(progress) == approx(share)
        found = loss_fn(logits, labels)
        for places, start in ((slice(0, 2), 11.0), (slice(3, 4), 0.55)):
            alone = NTLCrossEntropyLoss(vocabulary, HLGauss(share * start), reduction="none")(logits, labels)
            assert_close(found[:, places], alone[:, places], 1e-6)
