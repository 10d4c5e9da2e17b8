"""Numbers, scores and intervals out of a language model.

If errors are measured by distance, the median is a better answer than that of greedy decoding, and two
further quantiles form an interval.

    egg = Question("How many minutes does it take to boil an egg?", prefill="It takes ")
    read_number(model, tokenizer, egg)
    read_scores(model, tokenizer, questions, levels=range(1, 6))
    read_numbers(model, tokenizer, question, answer)  # each number of a written answer

A model is one of transformers, a server (`ntloss.reading.served`), or an engine (`from_function`).

Related work: Lukasik et al., "Regression-aware inference with LLMs", 2024 (sampled candidates); Song and
Bahri, "Decoding-based regression", 2025.
"""

from ntloss.callers import UnlikelyNumberWarning
from ntloss.reading.compare import AnswerComparison, AnswerErrors, Change, compare_answers
from ntloss.reading.intervals import interval_coverage, pinball_loss
from ntloss.reading.prompts import Limits, Question
from ntloss.reading.quantiles import number_quantiles
from ntloss.reading.read import read_number, read_numbers
from ntloss.reading.results import NumberQuantiles, NumberReading, WrittenNumber
from ntloss.reading.scores import read_scores
from ntloss.reading.source import from_function

__all__ = [
    # what is asked, and which numbers are read
    "Question",
    "Limits",
    # an engine in this process; a server is ntloss.reading.served.ServedModel
    "from_function",
    # one number, one call
    "read_number",
    "NumberReading",
    # each number of an answer that was already written
    "read_numbers",
    "WrittenNumber",
    # scores of a judge; ntloss.scores has what is made of them
    "read_scores",
    # quantiles of the number that a model is about to write, as tensors
    "number_quantiles",
    "NumberQuantiles",
    "UnlikelyNumberWarning",
    # answers of two or more models to the same prompts: did training help?
    "compare_answers",
    "AnswerComparison",
    "AnswerErrors",
    "Change",
    # how good intervals are
    "interval_coverage",
    "pinball_loss",
]
