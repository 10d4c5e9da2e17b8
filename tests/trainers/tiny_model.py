"""A tiny Qwen2 with a tokenizer of bytes and a chat template, and rows with numbers to train it on."""

import json

import torch

ROWS = [
    {"instruction": f"What is {i} plus {i}?", "input": "", "output": f"It is {2 * i}."} for i in range(7, 39)
]
_CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def save_model(folder):
    """Write the model and its tokenizer; its head is wider than the vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=_SPECIAL,
        chat_template=_CHAT,
        model_max_length=512,
    )
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(fast) + 13,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        pad_token_id=fast.pad_token_id,
        eos_token_id=fast.eos_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def save_rows(file):
    file.write_text(json.dumps(ROWS))
    return file


def expected_loss(tokenizer, calls, weight):
    """Compute cross-entropy + λ · Wasserstein of a step, both divided by its count of labels.

    `calls` are the logits and the unshifted labels of its micro-batches.
    """
    ids = torch.tensor(tokenizer.convert_tokens_to_ids(list("0123456789")))
    total, count, digits = 0.0, 0, 0
    for logits, labels in calls:
        logits, labels = logits[:, :-1].double().flatten(0, 1), labels[:, 1:].flatten()
        logits, labels = logits[labels != -100], labels[labels != -100]
        is_digit = (labels[:, None] == ids).any(1)
        truth = (labels[is_digit][:, None] == ids).double().argmax(1)
        distances = (torch.arange(10)[None] - truth[:, None]).abs()
        number = (logits[is_digit][:, ids].softmax(-1) * distances).sum()
        total += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum") + weight * number)
        count, digits = count + len(labels), digits + int(is_digit.sum())
    assert digits > 1
    return total / count
