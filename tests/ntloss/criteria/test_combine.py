"""Criteria made of others."""

from combined_cases import NUMBERS
from tolerances import approx

from ntloss import SMMD, Dist2, Wasserstein
from ntloss.criteria import WeightedSum


def test_a_weighted_sum_has_the_sum_of_the_worst_costs():
    values = NUMBERS.value_tensor()
    assert WeightedSum([Wasserstein(), SMMD()], [2.0, 1.0]).worst(values) == approx(18 + SMMD().worst(values))
    assert WeightedSum([Wasserstein(), Dist2()]).worst(values) is None
