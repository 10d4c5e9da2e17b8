"""Train policies of the second question again, and record how they move the point mass from one start.

python -m studies.actions.trajectories                # 96 short runs, about a quarter of an hour of a core

writes `results/trajectories.csv`, which `python tools/figures.py` draws.
"""

import argparse
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from studies.actions.environments import POINT, Array
from studies.actions.results import RANGE, RESULTS
from studies.actions.train import train_policy

ARMS = ("ce", "ntl_was", "crps", "hl_gauss")
LEARNING_RATES = (3e-4, 1e-3)  # where the losses differ most, and where they are level
START = (1.2, 0.8)  # moving away from rest


def main(arguments: Sequence[str] | None = None) -> None:
    """Train each policy, move the mass, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=RANGE)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--output", type=Path, default=RESULTS / "trajectories.csv")
    given = parser.parse_args(arguments)
    tables = [table("expert", 0.0, seed, POINT.expert) for seed in given.seeds]
    for rate, seed, arm in itertools.product(LEARNING_RATES, given.seeds, ARMS):
        policy = train_policy("point", arm, 600, given.steps, rate, seed)
        tables.append(table(arm, rate, seed, lambda states, policy=policy: policy.act(states, "median")))
        print(f"{arm}, {rate:g}, {seed}: ends at {tables[-1]['place'].iloc[-1]:.2f}", flush=True)
    pd.concat(tables).to_csv(given.output, index=False)


def table(arm: str, rate: float, seed: int, policy: Callable[[Array], Array]) -> pd.DataFrame:
    """Tabulate where the mass is at each step."""
    rng, states, places = np.random.default_rng(10_000 + seed), np.array([START]), []
    for _ in range(POINT.steps):
        places.append(states[0, 0])
        states, _ = POINT.step(states, policy(states), rng)
    found = {"arm": arm, "rate": rate, "seed": seed, "step": range(POINT.steps), "place": np.round(places, 4)}
    return pd.DataFrame(found)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
