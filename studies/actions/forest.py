"""Ask how many pairs say enough of an expert, by a random forest that reads the texts' numbers as numbers.

python -m studies.actions.forest                # two minutes of a core
"""

import numpy as np
from sklearn.ensemble import RandomForestRegressor

from studies.actions.environments import ENVIRONMENTS, Array, meant
from studies.actions.results import TUNING


def main() -> None:
    """Print what acting by a forest costs with 600, 2,400 and 10,000 pairs of a tuning seed."""
    seed = TUNING[0]
    for name, task in ENVIRONMENTS.items():
        for pairs in (600, 2400, 10_000):
            questions, actions = task.recordings(np.random.default_rng(seed), pairs)
            forest = RandomForestRegressor(200, min_samples_leaf=2, random_state=0)
            forest.fit(numbers_of(questions), actions.squeeze(-1) if task.parts == 1 else actions)

            def policy(states: Array, forest=forest, task=task) -> Array:
                predicted = forest.predict(numbers_of(task.question(states)))
                return meant(predicted.reshape(len(states), task.parts), task.acted)

            cost, best = (task.cost(each, 10_000 + seed) for each in (policy, task.expert))
            print(f"{name}, {pairs:,} pairs: {cost:.1f}, expert {best:.1f}", flush=True)


def numbers_of(questions: list[str]) -> Array:
    """Return the numbers of each question, `[questions, numbers]`."""
    return np.array([[int(number) for number in text.rstrip(": ").split()] for text in questions])


if __name__ == "__main__":
    main()
