"""What is a number: in a vocabulary, in a row of tokens, in a text.

Everything else in the library asks here; its grammar is `ntloss.numbers.grammar` and what that imports.
"""

from ntloss.numbers.fields import FieldNumber, by_field, find_fields
from ntloss.numbers.format import NumberFormat
from ntloss.numbers.inspection import inspect_tokenizer
from ntloss.numbers.labels import LabelNumbers, sequence_ids_of
from ntloss.numbers.parsing import number_texts, parse_number, parse_numbers
from ntloss.numbers.vocabulary import NumberVocabulary

__all__ = [
    # which tokens are numbers
    "NumberVocabulary",
    "inspect_tokenizer",
    # numbers and sequences in rows of labels
    "LabelNumbers",
    "sequence_ids_of",
    # how numbers are written
    "NumberFormat",
    # numbers in texts
    "parse_number",
    "parse_numbers",
    "number_texts",
    # numbers of fields
    "find_fields",
    "FieldNumber",
    "by_field",
]
