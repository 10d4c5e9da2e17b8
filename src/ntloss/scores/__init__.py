"""Scores of a judge, without torch: from what an API returned to the mean, and from several to a choice.

    scores_from_response(response, levels=range(1, 11)).mean

`ntloss.reading.read_scores` reads the score of a model in torch, or behind a server.
"""

from ntloss.callers import UnlikelyNumberWarning
from ntloss.scores.ratings import RatedScores, compare_with_ratings, fit_temperature, with_temperature
from ntloss.scores.readings import (
    MeanScore,
    ScoreReading,
    average,
    best_of,
    compare,
    scores_from_logprobs,
    scores_from_response,
    scores_from_samples,
)

__all__ = [
    # one score
    "scores_from_response",
    "scores_from_logprobs",
    "scores_from_samples",
    "ScoreReading",
    "UnlikelyNumberWarning",
    # several: criteria, repeats, attempts
    "average",
    "MeanScore",
    "compare",
    "best_of",
    # beside those of people
    "compare_with_ratings",
    "RatedScores",
    "fit_temperature",
    "with_temperature",
]
