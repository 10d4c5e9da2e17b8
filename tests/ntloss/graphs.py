"""Compares compiled with eager results, and counts the functions that a call enters."""

import sys
from pathlib import Path

from tolerances import assert_close

import ntloss


def assert_same_results(step, other, *given):
    results = []
    for function in (step, other):
        leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in given]
        loss = function(*leaves)
        loss.sum().backward()
        results.append([loss, *(leaf.grad for leaf in leaves if leaf.is_floating_point())])
    for got, wanted in zip(results[1], results[0], strict=True):
        assert_close(got, wanted)


def functions_entered(call):
    """Count the functions of the library that a call enters, without comprehensions."""
    found, home, before = set(), str(Path(ntloss.__file__).parent), sys.getprofile()

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(home) and not code.co_name.startswith("<"):
            found.add((code.co_filename, code.co_firstlineno))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return len(found)
