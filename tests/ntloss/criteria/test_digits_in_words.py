"""Digits in words keep cross-entropy under criteria on whole numbers, which would smooth them away."""

import random

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ntloss import HLGauss, NTLCrossEntropyLoss, NumberVocabulary
from ntloss.numbers import LabelNumbers

KEY, END = '{"bbox_2d": [', "]}"


def character_tokenizer():
    """A tokenizer with one token for each character of a row."""
    characters = dict.fromkeys(f"0123456789>, {KEY}{END}")
    backend = Tokenizer(models.WordLevel({c: i for i, c in enumerate(characters)}, ">"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize("text", [f"{KEY}512, 340{END}", f"{KEY}512,340{END}"])
def test_the_digit_of_a_key_is_no_number_and_both_coordinates_are(text):
    tokenizer = character_tokenizer()
    loss_fn = NTLCrossEntropyLoss(NumberVocabulary.from_tokenizer(tokenizer), HLGauss(sigma=20.0))
    numbers = LabelNumbers.unpack(loss_fn.prepare(torch.tensor([tokenizer.encode(text)])).numbers)
    places = [i for i, length in enumerate(numbers.length[0].tolist()) if length]
    assert [text[i] for i in places] == list("512340")
    assert [text[i] for i in places if numbers.starts[0, i]] == ["5", "3"]


def test_a_model_that_is_trained_with_wide_targets_writes_a_key_with_a_digit():
    tokenizer, rng = character_tokenizer(), random.Random(0)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer)
    loss_fn = NTLCrossEntropyLoss(vocabulary, HLGauss(sigma=20.0), shift=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    prompts = [f"{rng.randrange(100, 1000)}, {rng.randrange(100, 1000)}>" for _ in range(40 * 16)]
    for start in range(0, len(prompts), 16):
        rows = [f"{prompt}{KEY}{prompt[:-1]}{END}" for prompt in prompts[start : start + 16]]
        batch = torch.tensor([tokenizer.encode(row) for row in rows])
        labels = batch.masked_fill(torch.arange(batch.shape[1]) < len(prompts[0]), -100)
        loss = loss_fn(model(batch).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    questions = torch.tensor([tokenizer.encode("512, 340>"), tokenizer.encode("987, 123>")])
    answers = model.eval().generate(questions, max_new_tokens=len(KEY), do_sample=False, pad_token_id=0)
    assert [tokenizer.decode(answer[questions.shape[1] :]) for answer in answers] == [KEY] * 2
