"""A tiny causal language model in a folder, and rows that it can learn."""

import numpy as np
import pandas as pd
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ntloss.regression import NumberRegressor

WORDS = ("bad", "poor", "fair", "good", "great")
SMALL = {"epochs": 2, "verbose": False, "compare": False, "learning_rate": 3e-3}


def save_tiny_model(folder, layers=6, seed=0):
    """Save a Llama of random weights whose tokens are characters."""
    texts = sorted(pre_tokenizers.ByteLevel.alphabet())
    characters = Tokenizer(models.BPE({text: i for i, text in enumerate(["<end>", *texts])}, []))
    characters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    characters.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=characters, eos_token="<end>", pad_token="<end>")
    torch.manual_seed(seed)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = LlamaConfig(vocab_size=len(tokenizer), num_hidden_layers=layers, eos_token_id=0, **shape)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def save_tiny_encoder(folder):
    """Save a BERT of random weights, with the tokenizer of the tiny model."""
    save_tiny_model(folder, layers=1)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    (folder / "model.safetensors").unlink()
    BertModel(BertConfig(vocab_size=300, pad_token_id=0, **shape)).save_pretrained(folder)
    return folder


def reviews(count=80, seed=0):
    """Texts of one word, and numbers with a decimal, whose tens it decides."""
    random = np.random.default_rng(seed)
    kinds = random.integers(0, len(WORDS), count)
    texts = [f"{WORDS[kind]} {random.integers(1000, 10_000)}" for kind in kinds]
    return texts, (10 * kinds + 10 * random.random(count)).round(1)


def rooms(count=80, seed=0):
    """A table with numbers, categories, dates, gaps and columns of no use, and its prices."""
    random = np.random.default_rng(seed)
    size = random.integers(20, 200, count).astype(float)
    columns = {
        "id": np.arange(count),
        "country": "Norway",
        "kind": random.choice(["flat", "house"], count),
        "size": np.where(random.random(count) < 0.1, np.nan, size),
        "built": [f"19{50 + i % 50}-0{1 + i % 9}-01" for i in range(count)],
    }
    return pd.DataFrame(columns), pd.Series((10 * size).round(), name="price")


def make(folder, **options):
    return NumberRegressor(folder, **{**SMALL, **options})
