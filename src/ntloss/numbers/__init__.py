"""What is a number: in a vocabulary, in a row of tokens, in a text.

Everything else in the library asks here; its grammar is `ntloss.numbers.grammar` and what that imports.
"""

import typing as _typing
from importlib import import_module as _import_module

from ntloss.numbers.parsing import number_texts, parse_number, parse_numbers

if _typing.TYPE_CHECKING:
    from ntloss.numbers.fields import FieldNumber, by_field, find_fields
    from ntloss.numbers.format import NumberFormat
    from ntloss.numbers.inspection import inspect_tokenizer
    from ntloss.numbers.labels import LabelNumbers, sequence_ids_of
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

_HOMES = ("vocabulary", "inspection", "labels", "format", "fields")


if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import what needs torch when it is used: numbers of texts need only the grammar."""
        for home in _HOMES if name in __all__ else ():
            module = _import_module(f"ntloss.numbers.{home}")
            if name in vars(module) and vars(module)[name].__module__ == module.__name__:
                return vars(module)[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
