"""Prompts and answers as rows of tokens."""

import tiny_tokenizers as tiny
from reading_cases import make_model
from tolerances import assert_close

from ntloss.numbers import NumberFormat
from ntloss.writing import Writer


def test_a_tokenizer_without_tokens_for_padding_reads_batches_as_single_prompts():
    tokenizer = tiny.byte_level()
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (None, None)
    writer = Writer(make_model("llama", len(tokenizer)).double(), tokenizer, NumberFormat(2))
    prompts = [tokenizer.encode(text) for text in ("a", "the a")]
    single = [writer.quantiles([prompt], [0.5])[0] for prompt in prompts]
    assert_close(writer.quantiles(prompts, [0.5]), single)
