import re

from data_cases import task

SMALL = ("data_dir=null", "train_per_difficulty=200", "validation_per_difficulty=10", "test_size=50")


def test_generated_answers_equal_pythons_evaluation_of_the_expression():
    data = task("arithmetic", *SMALL)
    for example in (*data.train, *data.tests["interpolate"], *data.tests["extrapolate"]):
        expression = re.search(r"[-(\d].*[\d)]", example.question).group()
        assert eval(expression) == int(example.answer), example
