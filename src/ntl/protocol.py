"""The number of an answer by the paper's protocol, on which all published results of the lab rest.

It is the last number of the decoded text. Only commas separate thousands, and a number counts although it is
a part of something else: the answer `1/2` is 2, where `ntloss.numbers.parse_number` says None.
"""

from ntloss.numbers import number_texts


def numbers_of(text: str) -> list[str]:
    """Return the numbers of a text, as strings that `float` and `Decimal` accept.

    Example:
        >>> numbers_of("12 - 1,000 = -988")
        ['12', '1000', '-988']
    """
    return number_texts(text, thousands=",")


def last_number(text: str) -> float | None:
    """Return the last number of a text, or None if there is none.

    Example:
        >>> last_number("3/4 of 2"), last_number("1/2"), last_number("none")
        (2.0, 2.0, None)
    """
    numbers = numbers_of(text)
    return float(numbers[-1]) + 0.0 if numbers else None  # one zero
