"""A model that writes one of some texts, whatever the prompt: the distribution of its numbers is known."""

import math

import torch

from ntloss.reading.source import Prefixes, Source


def byte_level_tokenizer(*merged):
    """A tokenizer of bytes, and of some texts in one token each."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab, merges = {character: i for i, character in enumerate(alphabet)}, []
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in merged:
        ((written, _),) = to_bytes.pre_tokenize_str(text)
        for end in range(2, len(written) + 1):
            if written[:end] not in vocab:
                vocab[written[:end]] = len(vocab)
                merges.append((written[: end - 1], written[end - 1]))
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer, tokenizer.decoder = to_bytes, decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


class Answers(Source):
    """It writes each text with its probability, and then ends.

    Args:
        tokenizer: a tokenizer of transformers with an end token.
        shares: text to its probability.
    """

    def __init__(self, tokenizer, shares):
        end = tokenizer.eos_token_id
        self.tokenizer = tokenizer
        self.rows = [((*tokenizer.encode(text), end), share) for text, share in shares.items()]

    def continuations(self, inputs, texts, prefix_ids=()):
        """Continue prompts, of which only the number counts."""
        return _Written(self, [tuple(prefix_ids)] * len(inputs))


class _Written(Prefixes):
    def __init__(self, model, prompts):
        super().__init__(prompts)
        self.model = model

    def _after(self, prefix):
        shares = {}
        for ids, share in self.model.rows:
            if ids[: len(prefix)] == prefix and len(ids) > len(prefix):
                shares[ids[len(prefix)]] = shares.get(ids[len(prefix)], 0.0) + share
        total = sum(shares.values())
        return {token: math.log(share / total) for token, share in shares.items()}

    def ask(self, prefixes, token_ids):
        after = [self._after(prefix) for prefix in prefixes]
        rows = [[row.get(i, -math.inf) for i in token_ids] for row in after]
        return torch.tensor(rows, dtype=torch.float64).view(len(rows), len(token_ids))

    def likeliest(self, row):
        after = self._after(self.prompts[row])
        return max(after, key=after.get)
