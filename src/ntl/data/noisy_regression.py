"""Noisy regression as text: the question is a few integers, the answer one number.

The answer is a weighted sum of the integers plus Gaussian noise or, on a log scale, a product of the
integers' powers times log-normal noise. The noise makes the exact answer unpredictable, so what matters is
how *close* a prediction is, which is what a number token loss optimizes. Without noise and with weights of 1
the task is exact addition or multiplication.
"""

from dataclasses import dataclass

import numpy as np

from ntl.data.task import BY_SETTINGS, Data, Example, TaskData, setting
from ntl.errors import UserError


@dataclass
class NoisyRegression(Data):
    """Weighted sums with noise: "12 70 45" -> 5*12 + 3*70 + 2*45 + noise, whose MAE is 20."""

    dataset_name: str = "noisy_regression"
    weights: list[float] = setting([5, 3, 2], "weight of each integer of a question")
    smallest: int = setting(10, "smallest integer of a question")
    largest: int = setting(99, "largest integer of a question")
    noise: float = setting(
        25.0, "standard deviation of the noise; with log_scale, of the logarithm of the answer", least=0
    )
    log_scale: bool = setting(
        False, "true: the answer is a product of the integers, each raised to its weight, times exp(noise)"
    )
    largest_answer: int = setting(999, "answers are clipped to the range from 0 to this value")
    train_size: int = setting(50_000, "number of training examples", least=1)
    validation_size: int = setting(500, "number of validation examples", least=1)
    test_size: int = setting(1000, "number of test examples", least=1)
    data_seed: int = setting(0, "random seed of the examples")
    max_new_tokens: int = setting(8, "most tokens of an answer", "answers", least=1)

    def read(self) -> TaskData:
        """Generate the examples: the sum of w x + e or, on a log scale, the product of x^w times exp(e).

        No test or validation question is in the training set. `Example.expected` is the answer's median,
        which minimizes the mean absolute error.

        Raises:
            UserError: The range of the integers has too few questions to hold out for validation and test.
        """
        low, high, weights = self.smallest, self.largest, self.weights
        if self.log_scale and low < 1:
            raise UserError(
                f"dataset_args.smallest={low} is given with dataset_args.log_scale=true; expected at least 1."
            )
        held_out = self.validation_size + self.test_size
        questions = (high - low + 1) ** len(weights) if high > low else 0
        if questions < 4 * held_out:
            raise UserError(
                f"dataset_args.weights={weights} with integers from dataset_args.smallest={low} to "
                f"dataset_args.largest={high} make {questions} questions; expected at least {4 * held_out}, "
                "four times validation_size and test_size."
            )

        rng = np.random.default_rng(self.data_seed)
        test = self._draw(self.test_size, rng)
        validation = self._draw(self.validation_size, rng)
        seen = frozenset(example.question for example in (*test, *validation))
        train = self._draw(self.train_size, rng, seen)
        return TaskData(train, validation, {"test": test}, source=BY_SETTINGS)

    def _draw(
        self, size: int, rng: np.random.Generator, exclude: frozenset[str] = frozenset()
    ) -> list[Example]:
        examples: list[Example] = []
        while len(examples) < size:
            missing = size - len(examples)
            shape = missing, len(self.weights)
            integers = rng.integers(self.smallest, self.largest, shape, endpoint=True)
            noise = rng.normal(0.0, self.noise, missing)
            if self.log_scale:
                expected = np.prod(integers.astype(float) ** self.weights, axis=1)
                noisy = expected * np.exp(noise)
            else:
                expected = integers @ np.asarray(self.weights)
                noisy = expected + noise
            # Rounding and clipping are monotone, so they map the median to the median.
            answers, medians = (np.rint(each).clip(0, self.largest_answer) for each in (noisy, expected))
            for row, answer, median in zip(integers, answers.astype(int), medians, strict=True):
                question = " ".join(map(str, row))
                if question not in exclude:
                    examples.append(Example(question, str(answer), float(median)))
        return examples
