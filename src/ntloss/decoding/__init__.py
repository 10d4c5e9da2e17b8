"""Read the right number out of a model, and how sure it is.

Greedy decoding takes the likeliest token at each step. Errors are measured by distance, and for these the
median is better; two more quantiles beside it are an interval.

    read = number_quantiles(model, tokenizer(questions, return_tensors="pt"), vocabulary, digits=3)
    low, median, high = read.values.unbind(-1)

Relatives: Lukasik et al., "Regression-aware inference with LLMs", 2024 (sampled candidates); Song and Bahri,
"Decoding-based regression", 2025.
"""

from ntloss.decoding.conformal import interval_margin
from ntloss.decoding.processor import QuantileLogitsProcessor
from ntloss.decoding.quantiles import NumberQuantiles, number_quantiles

__all__ = [
    # quantiles of the number that a model is about to write
    "number_quantiles",
    "NumberQuantiles",
    # the same inside of model.generate
    "QuantileLogitsProcessor",
    # intervals that keep their promise
    "interval_margin",
]
