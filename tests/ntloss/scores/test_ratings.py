"""A judge's scores beside ratings of people: the measures, and the temperature."""

import math

import pandas as pd
import pytest
import torch
from tolerances import OF_DRAWN_ROWS, ONE_COMPUTATION, approx, assert_close

from ntloss import crps
from ntloss.scores import ScoreReading, compare_with_ratings, fit_temperature, with_temperature

LEVELS = (1, 2, 4, 5)


def reading(*shares, levels=LEVELS, none=0.0):
    return ScoreReading(dict(zip(levels, shares, strict=True)), none)


def random_scores(rows, spread=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(rows, len(LEVELS), generator=generator, dtype=torch.float64)
    return [reading(*row) for row in logits.softmax(-1).tolist()]


def drawn_ratings(scores, raters, seed=1):
    generator = torch.Generator().manual_seed(seed)
    probs = torch.tensor([[*score.probabilities.values()] for score in scores])
    return [[LEVELS[i] for i in row] for row in probs.multinomial(raters, True, generator=generator).tolist()]


def test_measures_are_those_of_their_definitions():
    scores = random_scores(40)
    ratings = [given for (given,) in drawn_ratings(scores, 1)]
    probs = torch.tensor([[*score.probabilities.values()] for score in scores], dtype=torch.float64)
    found = compare_with_ratings(scores, ratings)
    index = torch.tensor([LEVELS.index(rating) for rating in ratings])
    values = torch.tensor(LEVELS, dtype=torch.float64)
    assert_close(found.ranked_probability, crps(probs, values, index).mean().item())
    assert found.log_loss == approx(-probs[range(40), index].log().mean().item())
    assert found.brier == approx(((probs - torch.eye(4)[index]) ** 2).sum(-1).mean().item())


def test_several_raters_count_as_the_mean_over_each():
    scores = random_scores(5)
    of_two = compare_with_ratings(scores, [[1, 4]] * 5)
    of_each = [compare_with_ratings(scores, [rating] * 5) for rating in (1, 4)]
    for name in ("ranked_probability", "brier", "log_loss"):
        assert getattr(of_two, name) == approx(sum(getattr(each, name) for each in of_each) / 2)
    assert compare_with_ratings(scores, [{1: 3, 4: 3}] * 5) == of_two
    assert compare_with_ratings(scores, torch.tensor([1] * 5)) == of_each[0]
    assert compare_with_ratings(scores, pd.Series([1] * 5)) == of_each[0]
    raters = pd.DataFrame({"a": [1] * 5, "b": [4] * 5})  # a column each
    assert compare_with_ratings(scores, raters) == of_two
    assert fit_temperature(scores, raters) == approx(fit_temperature(scores, [[1, 4]] * 5))


def test_calibration_error_is_taken_within_bins():
    shares = ((0.9, 0.1, 0, 0), (0.9, 0.1, 0, 0), (0.1, 0.6, 0.3, 0), (0, 0, 0, 1))
    scores = [reading(*each) for each in shares]
    ratings = [1, 2, 2, 5]  # half of those at 0.9 are right, that at 0.6, and that at 1, in the bin of 0.9
    assert compare_with_ratings(scores, ratings).calibration_error == approx((2.8 - 2 + 0.4) / 4)


def test_other_answers_of_the_judge_are_left_out():
    with_others = reading(0.2, 0.1, 0.1, 0.1, none=0.5)
    found = compare_with_ratings([with_others], [1])
    assert found == compare_with_ratings([reading(0.4, 0.2, 0.2, 0.2)], [1])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_of_too_sure_or_unsure_scores_is_found(temperature):
    truth = random_scores(300, spread=2.0)
    ratings = drawn_ratings(truth, 200)
    scores = with_temperature(truth, 1 / temperature)
    found = fit_temperature(scores, ratings)
    assert found == approx(temperature, OF_DRAWN_ROWS)
    mended = compare_with_ratings(with_temperature(scores, found), ratings)
    for nearby in (0.9 * found, 1.1 * found):
        assert mended.log_loss < compare_with_ratings(with_temperature(scores, nearby), ratings).log_loss


def test_a_temperature_of_one_changes_nothing_and_others_keep_what_is_no_level():
    score = reading(0.1, 0.3, 0.2, 0.1, none=0.3)
    (same,), (flatter,) = with_temperature([score], 1.0), with_temperature([score], 2.0)
    assert_close(dict(same.probabilities), dict(score.probabilities), ONE_COMPUTATION[torch.float64])
    assert sum(flatter.probabilities.values()) == approx(0.7)
    assert flatter.none == score.none
    assert flatter.probabilities[2] < score.probabilities[2]


def test_temperatures_without_a_best_one_stay_finite():
    for score, rating in ((reading(0, 0, 1, 0), 4), (reading(0, 0, 1, 0), 1), (reading(*[0.25] * 4), 1)):
        assert 0.01 <= fit_temperature([score], [rating]) <= 100


def test_words_have_the_values_of_their_reading():
    moods = {"calm": 0, "annoyed": 1, "angry": 3}
    score = ScoreReading({"calm": 0.5, "annoyed": 0.25, "angry": 0.25}, values=moods)
    assert compare_with_ratings([score], ["calm"]).ranked_probability == approx(0.25 + 2 * 0.0625)
    assert with_temperature([score], 1.0)[0].mean == approx(1.0)


@pytest.mark.parametrize(
    ("scores", "ratings", "said"),
    [
        ([], [], "0 scores"),
        ([reading(1, 0, 0, 0)], [1, 2], "2 ratings"),
        ([reading(1, 0, 0, 0)], [3], "3"),
        ([reading(1, 0, 0, 0)], [[]], "row 0"),
        ([reading(0, 0, 0, 0)], [1], "row 0"),
        ([reading(1, 0, 0, 0), reading(1, 0, levels=(1, 2))], [1, 1], "row 1"),
    ],
)
def test_what_cannot_be_compared_is_an_error(scores, ratings, said):
    with pytest.raises(ValueError, match=said):
        compare_with_ratings(scores, ratings)


@pytest.mark.parametrize("temperature", [0, -1.0, math.nan, math.inf])
def test_a_temperature_is_above_0(temperature):
    with pytest.raises(ValueError, match="temperature"):
        with_temperature([reading(1, 0, 0, 0)], temperature)
