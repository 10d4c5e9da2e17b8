"""Fine-tune all layers of SmolLM2 for several numbers of steps; the learning rate falls to zero at the last.

    python -m studies.schedules.train --seeds 12 13                 # tuning
    python -m studies.schedules.train --seeds 27 28 29 30 31 32     # the setting that the tuning seeds chose

How runs are stopped, continued and shared between processes: studies/fine_tuning.py.
"""

import argparse
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from studies.fine_tuning import ARMS, TABLES, FineTuning, make_runs, parser_of
from studies.packs import merge
from studies.schedules.results import KEY, RESULTS, STEPS, TRIED, TUNING, best_settings, chosen_settings


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, those of few steps first."""
    parser = parser_of(__doc__, "outputs/schedules")
    parser.add_argument("--tables", nargs="+", default=[*TABLES], choices=TABLES)
    parser.add_argument("--arms", nargs="+", default=ARMS, choices=ARMS)
    given = parser.parse_args(arguments)
    make_runs(given, planned(given))


def planned(given: argparse.Namespace) -> Iterator[tuple[str, Callable[[], FineTuning]]]:
    """Yield the name of each run and what makes it."""
    for seed in given.seeds:
        runs = merge(RESULTS / "runs.jsonl.xz", given.outputs, KEY)
        asked = [
            (steps, arm, table, rate)
            for arm, table in itertools.product(given.arms, given.tables)
            for steps, rate in settings_of(runs, table, arm, seed)
        ]
        for steps, arm, table, rate in sorted(asked, key=lambda run: run[0]):
            name = f"{table}-{arm}-{seed}-{steps}-{rate:.0e}"
            yield name, functools.partial(FineTuning, given, table, arm, seed, rate, steps)


def settings_of(
    runs: Sequence[Mapping[str, Any]], table: str, arm: str, seed: int
) -> list[tuple[int, float]]:
    """Return the numbers of steps and rates of a seed's runs."""
    if seed == TUNING[0]:
        return [*itertools.product(STEPS, TRIED)]
    found = (best_settings if seed == TUNING[1] else chosen_settings)(runs)
    if (table, arm) not in found:
        raise SystemExit(f"{table}, {arm}: tuning runs are missing; make those of the seeds {TUNING} first.")
    return found[table, arm]


if __name__ == "__main__":
    main()
