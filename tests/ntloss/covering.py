"""A few cases that cover every pair of options, instead of the full product."""

import itertools


def covering(options):
    """Make cases that combine each value of each option with each value of every other; deterministic.

    Args:
        options: the values of each option; at least two options.
    """
    names = list(options)
    # A dict, because it keeps the order.
    missing = {
        frozenset({(a, i), (b, j)}): None
        for a, b in itertools.combinations(names, 2)
        for i in range(len(options[a]))
        for j in range(len(options[b]))
    }
    cases = []
    while missing:
        # Start from a missing pair, then give each option the value that adds the most missing pairs.
        case: dict[str, int] = dict(next(iter(missing)))
        for name in names:
            if name not in case:
                gains = [
                    sum(frozenset({(name, value), other}) in missing for other in case.items())
                    for value in range(len(options[name]))
                ]
                # Ties are broken in turn, so that no value is preferred.
                turn = len(cases) % len(gains)
                case[name] = max(range(len(gains)), key=lambda v: (gains[v], (v - turn) % len(gains)))
        for pair in itertools.combinations(case.items(), 2):
            missing.pop(frozenset(pair), None)
        cases.append({name: options[name][case[name]] for name in names})
    return cases
