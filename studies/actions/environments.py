"""Three tasks of control whose expert is known, for many states at once, and their texts.

States are arrays `[states, size]`, actions `[states, parts]`. An observation and an action are whole numbers
from 0 to 999 in text: `602 327: ` and `743`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from gymnasium.envs.classic_control.pendulum import PendulumEnv

LARGEST = 999
Array = np.ndarray


@dataclass(frozen=True)
class Environment:
    """A task of control.

    Args:
        starts: draws a number of states to start from.
        expert: the action of the expert in each state.
        step: makes a step: the next states, and the cost of each state with its action, `[states]`.
        observe: what is observed of each state, `[states, numbers]`.
        observed: the largest size of each observed number, for its place between 0 and 999.
        acted: the largest size of an action.
        parts: numbers of an action.
        noise: standard deviation of the noise in the expert's recorded actions.
        steps: length of an episode that counts.
        recorded: length of an episode that the expert records.
    """

    starts: Callable[[np.random.Generator, int], Array]
    expert: Callable[[Array], Array]
    step: Callable[[Array, Array, np.random.Generator], tuple[Array, Array]]
    observe: Callable[[Array], Array]
    observed: tuple[float, ...]
    acted: float
    parts: int
    noise: float
    steps: int
    recorded: int

    def question(self, states: Array) -> list[str]:
        """Write what is observed of each state."""
        numbers = written(self.observe(states), np.array(self.observed))
        return [" ".join(f"{number:03d}" for number in row) + ": " for row in numbers]

    def recordings(self, rng: np.random.Generator, count: int) -> tuple[list[str], Array]:
        """Record the noisy expert.

        Returns:
            Questions, and the numbers from 0 to 999 of the actions, `[count, parts]`.
        """
        questions, actions = list[str](), list[Array]()
        while len(questions) < count:
            states = self.starts(rng, 1)
            for _ in range(self.recorded):
                best = self.expert(states)
                noisy = np.clip(best + rng.normal(0, self.noise, best.shape), -self.acted, self.acted)
                questions += self.question(states)
                actions += [*written(noisy, self.acted)]
                states, _ = self.step(states, best, rng)
        return questions[:count], np.array(actions[:count])

    def cost(self, policy: Callable[[Array], Array], seed: int, episodes: int = 24) -> float:
        """Run a policy in a closed loop; return the mean cost of an episode."""
        rng = np.random.default_rng(seed)
        states, total = self.starts(rng, episodes), np.zeros(episodes)
        for _ in range(self.steps):
            states, cost = self.step(states, policy(states), rng)
            total += cost
        return float(total.mean())


def written(values: Array, largest: Array | float) -> Array:
    """Return the whole numbers from 0 to 999 for values between minus and plus `largest`."""
    return np.clip(np.round((values / largest + 1) / 2 * LARGEST), 0, LARGEST).astype(int)


def meant(numbers: Array, largest: float) -> Array:
    """Return the values that whole numbers from 0 to 999 stand for."""
    return (numbers / LARGEST * 2 - 1) * largest


# A point mass on a line, steered to rest at 0 by a linear-quadratic controller.
GAIN = np.array([1.6, 1.9])


def _push(states: Array, actions: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    cost = states[:, 0] ** 2 + 0.1 * states[:, 1] ** 2 + 0.1 * actions[:, 0] ** 2
    moved = states @ np.array([[1, 0.2], [0, 1]]).T + actions * np.array([0.02, 0.2])
    return np.clip(moved + rng.normal(0, 0.03, states.shape), -2, 2), cost


POINT = Environment(
    starts=lambda rng, count: rng.uniform(-1.5, 1.5, (count, 2)),
    expert=lambda states: np.clip(-states @ GAIN, -1.5, 1.5)[:, None],
    step=_push,
    observe=lambda states: states,
    observed=(2.0, 2.0),
    acted=1.5,
    parts=1,
    noise=0.12,
    steps=25,
    recorded=12,
)

# Gymnasium's pendulum, swung up by its energy, and held upright by a proportional-derivative controller.
UPRIGHT = 5.0  # energy of the pendulum at rest on top: m g l / 2
SURPLUS = 0.3  # energy above that, with which it passes the top rather than stopping before it


def _swing_up(states: Array) -> Array:
    angle = (states[:, 0] + np.pi) % (2 * np.pi) - np.pi
    speed = states[:, 1]
    energy = speed**2 / 6 + UPRIGHT * np.cos(angle)
    pumped = np.clip((UPRIGHT + SURPLUS - energy) * np.where(speed < 0, -1, 1), -2, 2)
    held = -16 * angle - 4 * speed
    return np.clip(np.where(abs(angle) < 0.7, held, pumped), -2, 2)[:, None]


def _swing(states: Array, actions: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    pendulum, moved, cost = PendulumEnv(), [], []
    for state, action in zip(states, actions, strict=True):
        pendulum.state = state
        _, reward, *_ = pendulum.step(action)
        moved.append(pendulum.state)
        cost.append(-reward)
    return np.array(moved), np.array(cost)


PENDULUM = Environment(
    starts=lambda rng, count: np.stack([rng.uniform(-np.pi, np.pi, count), rng.uniform(-1, 1, count)], 1),
    expert=_swing_up,
    step=_swing,
    observe=lambda states: np.stack([np.cos(states[:, 0]), np.sin(states[:, 0]), states[:, 1]], 1),
    observed=(1.0, 1.0, 8.0),
    acted=2.0,
    parts=1,
    noise=0.15,
    steps=120,
    recorded=60,
)

# An arm of two joints that reaches for a point: two torques an action. Speeds show only in two observations.
# A state holds the angles, the angles one step before, and the target.
TICK = 0.1


def _hand(angles: Array) -> Array:
    both = angles.cumsum(1)
    return np.stack([np.cos(both).sum(1), np.sin(both).sum(1)], 1)


def _reach(states: Array) -> Array:
    angles, speeds = states[:, :2], (states[:, :2] - states[:, 2:4]) / TICK
    both = angles.cumsum(1)
    shoulder = np.stack([-np.sin(both).sum(1), np.cos(both).sum(1)], 1)
    elbow = np.stack([-np.sin(both[:, 1]), np.cos(both[:, 1])], 1)
    missing = states[:, 4:] - _hand(angles)
    pull = np.stack([(shoulder * missing).sum(1), (elbow * missing).sum(1)], 1)
    return np.clip(6 * pull - 3 * speeds, -4, 4)


def _move_arm(states: Array, actions: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    angles, speeds = states[:, :2], (states[:, :2] - states[:, 2:4]) / TICK
    missing = states[:, 4:] - _hand(angles)
    cost = (missing**2).sum(1) + 0.01 * (actions**2).sum(1)
    speeds = np.clip(speeds + TICK * actions, -3, 3) + rng.normal(0, 0.01, speeds.shape)
    return np.concatenate([angles + TICK * speeds, angles, states[:, 4:]], 1), cost


def _arms(rng: np.random.Generator, count: int) -> Array:
    angles, goal = (
        rng.uniform([-0.8, 0.6], [0.8, 2.0], (count, 2)),
        rng.uniform([-0.8, 0.6], [0.8, 2.0], (count, 2)),
    )
    return np.concatenate([angles, angles, _hand(goal)], 1)


REACH = Environment(
    starts=_arms,
    expert=_reach,
    step=_move_arm,
    observe=lambda states: states,
    observed=(np.pi,) * 4 + (2.0, 2.0),
    acted=4.0,
    parts=2,
    noise=0.3,
    steps=40,
    recorded=20,
)

ENVIRONMENTS = {"point": POINT, "pendulum": PENDULUM, "reach": REACH}
