"""Decode the number with the least expected error, and intervals around it.

If errors are measured by distance, the median is a better answer than that of greedy decoding, and two
further quantiles form an interval.

    read_number(model, tokenizer, "How many minutes does it take to boil an egg?", prefill="It takes ")

Of several prompts, or with other levels:

    inputs = tokenizer(questions, return_tensors="pt")
    read = number_quantiles(model, inputs, vocabulary, format=NumberFormat(digits=3))
    low, median, high = read.values.unbind(-1)

Related work: Lukasik et al., "Regression-aware inference with LLMs", 2024 (sampled candidates); Song and
Bahri, "Decoding-based regression", 2025.
"""

from ntloss.decoding.quantiles import (
    NumberQuantiles,
    UnlikelyNumberWarning,
    interval_margin,
    number_quantiles,
)
from ntloss.decoding.reading import NumberReading, read_number

__all__ = [
    # one number, one call
    "read_number",
    "NumberReading",
    # quantiles of the number that a model is about to write
    "number_quantiles",
    "NumberQuantiles",
    "UnlikelyNumberWarning",
    # intervals with guaranteed coverage
    "interval_margin",
]
