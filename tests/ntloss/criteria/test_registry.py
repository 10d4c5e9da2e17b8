"""Criteria by name."""

from pathlib import Path

import pytest
import torch
from combined_cases import NUMBERS, numbers_case
from tolerances import approx, assert_close

import ntloss.criteria.registry as registry
from ntloss import (
    CRPS,
    SMMD,
    CriterionInput,
    Dist2,
    GaussianCrossEntropy,
    NTLCrossEntropyLoss,
    NTLLinearCrossEntropyLoss,
    NumberTokenLoss,
    NumberVocabulary,
    Reweighed,
    Wasserstein,
    criterion_names,
    get_criterion,
    register_criterion,
)
from ntloss.criteria import Magnitude, Needs, PerNumber, PlaceWeighted, RelativeError, WeightedSum
from ntloss.criteria.criterion import needs_of, worst_of
from ntloss.criteria.registry import title_of

NAMES = criterion_names()  # before other tests register more


def test_default_options_are_the_published_ones():
    assert get_criterion("smmd") == SMMD(2.0, 9.0)
    assert get_criterion("dist2") == Dist2(1.0, "squared")
    assert get_criterion("gaussian_cross_entropy") == GaussianCrossEntropy(1.0)
    weighted = PlaceWeighted(Wasserstein(), "exponential", 1.2, False)
    assert get_criterion("place_weighted", criterion="wasserstein", decimals=False) == weighted
    parts = (PerNumber(weighted), RelativeError(0.1, True, False), Magnitude(0.1, True, False))
    assert get_criterion("ntil") == WeightedSum(parts, (1.0, 0.2, 0.2))


def test_every_name_makes_a_criterion():
    options = {
        "place_weighted": {"criterion": "smmd"},
        "reweighed": {"criterion": "crps"},
        "per_number": {"criterion": {"name": "dist2", "tau": 2.0}},
        "weighted_sum": {"criteria": ["wasserstein", {"name": "dist2", "tau": 2.0}], "weights": [0.5, 2]},
        "smmd": {"sigma": 4.0},
        "hl_gauss": {"sigma": 2.0},
    }
    case = numbers_case("ntil")
    for name in criterion_names():
        criterion = get_criterion(name, **options.get(name, {}))
        assert hash(criterion) == hash(criterion)
        assert NumberTokenLoss(NUMBERS, criterion)(case.logits(), case.labels).isfinite()


def test_the_page_of_criteria_has_a_row_for_each_with_its_needs():
    page = (Path(__file__).parents[3] / "docs/criteria.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    names = [row[0].strip("| `") for row in rows if "`, `" not in row[0]]  # without rows of an option
    assert sorted(names) == NAMES
    alone = {row[0].strip("| `"): row[3] for row in rows if len(row) > 4 and "`, `" not in row[0]}
    for name, needs in alone.items():
        expected = needs_of(get_criterion(name, **({"sigma": 1.0} if name == "hl_gauss" else {})))
        assert ("mass" in needs) == expected.log_normalizer, name
        assert ("whole numbers" in needs) == expected.per_number, name


def squared_distance(x, power=2.0):
    return (x.probs * (x.values - x.target_values.unsqueeze(-1)).abs() ** power).sum(-1)


def test_a_function_is_a_criterion():
    digits = NumberVocabulary.from_mapping({d: d for d in range(10)}, vocab_size=12)
    loss = NumberTokenLoss(digits, squared_distance)(torch.zeros(1, 12), torch.tensor([4]))
    assert_close(loss, (torch.arange(10.0) - 4).square().mean())
    with pytest.raises(ValueError, match="Reweighed needs a criterion with a worst cost"):
        Reweighed(squared_distance)


@pytest.mark.parametrize("kind", [NumberTokenLoss, NTLCrossEntropyLoss, NTLLinearCrossEntropyLoss])
@pytest.mark.parametrize("given", ["crps", {"name": "dist2", "tau": 0.5}])
def test_losses_accept_a_registered_name(kind, given):
    expected = CRPS() if given == "crps" else Dist2(0.5)
    assert kind(NUMBERS, given).criterion == kind(NUMBERS, criterion=expected).criterion == expected


def test_a_criterion_has_a_title_for_readers():
    titles = {"wasserstein": "NTL-WAS", "expected_value": "NTL-MSE", "crps": "CRPS"}
    assert {name: title_of(get_criterion(name)) for name in titles} == titles
    assert title_of(Dist2(0.5)) == "Dist2(tau=0.5, distance='squared')"
    assert title_of(squared_distance) == "squared_distance"


def test_unknown_names_and_options_list_the_choices(monkeypatch):
    monkeypatch.setattr(registry, "CRITERIA", dict(registry.CRITERIA))
    with pytest.raises(ValueError, match=r"'wassersten'.*dist2.*wasserstein"):
        get_criterion("wassersten")
    with pytest.raises(ValueError, match=r"no option 'temperature'.*tau, distance"):
        get_criterion("dist2", temperature=2.0)
    with pytest.raises(ValueError, match=r"dist2.*is taken by"):
        register_criterion("dist2", Wasserstein)
    register_criterion("a function for the test", squared_distance)
    x = CriterionInput(torch.tensor([[0.25, 0.75]]).log(), torch.tensor([0.0, 2.0]), torch.tensor([0]))
    assert get_criterion("a function for the test")(x) == approx(3.0)
    assert get_criterion("a function for the test", power=1.0)(x) == approx(1.5)
    with pytest.raises(ValueError, match=r"has no option 'sigma'. Its options: power"):
        get_criterion("a function for the test", sigma=1.0)
    with monkeypatch.context() as attributes:
        attributes.setattr(squared_distance, "needs", Needs(spans=True), raising=False)
        attributes.setattr(squared_distance, "worst", lambda values, power=2.0: power, raising=False)
        for options, worst in (({}, 2.0), ({"power": 3.0}, 3.0)):
            criterion = get_criterion("a function for the test", **options)
            assert needs_of(criterion) == Needs(spans=True)
            assert worst_of(criterion, torch.zeros(1)) == worst
    register_criterion("squashed for the test", lambda factor=3.0: Wasserstein(factor))
    assert get_criterion("squashed for the test", factor=4.0) == Wasserstein(4.0)
    assert "squashed for the test" in criterion_names()
