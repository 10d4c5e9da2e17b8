import re

from data_cases import task

SMALL_ARITHMETIC = (
    "dataset_args=arithmetic",
    "dataset_args.data_dir=null",
    "dataset_args.train_per_difficulty=200",
    "dataset_args.validation_per_difficulty=10",
    "dataset_args.test_size=50",
)


def test_generated_answers_equal_pythons_evaluation_of_the_expression():
    data = task(*SMALL_ARITHMETIC)
    for example in (*data.train, *data.tests["interpolate"], *data.tests["extrapolate"]):
        expression = re.search(r"[-(\d].*[\d)]", example.question).group()
        assert eval(expression) == int(example.answer), example
