"""Options of the loss from a trainer's configuration file."""

import pytest

from ntloss import CRPS, Dist2
from ntloss.integrations.options import options_from_config


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({}, {}),
        ({"weight": 0.1, "criterion": "crps", "mode": None}, {"weight": 0.1, "criterion": CRPS()}),
        ({"criterion": {"name": "dist2", "tau": 2.0}}, {"criterion": Dist2(tau=2.0)}),
        ({"normalize_by": "numbers", "z_loss": 1e-4}, {"normalize_by": "numbers", "z_loss": 1e-4}),
    ],
)
def test_options_become_those_of_the_loss(config, options):
    assert options_from_config(config) == options


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"lambda": 0.3}, "unknown option 'lambda' of the number token loss: expected weight, criterion"),
        ({"wieght": 0.3}, r"did you mean weight\?"),
        ({"criterion": "hl_gauss"}, "'hl_gauss' needs sigma: expected {'name': 'hl_gauss', 'sigma'"),
        ({"criterion": "crsp"}, "no criterion is called 'crsp'"),
        ({"criterion": {"name": "crps", "tau": 1}}, "'crps' has no option 'tau'"),
        ({"criterion": {"tau": 1}}, "has no name: expected {'name': "),
        ({"weight": -1.0}, "weight"),
        ({"normalize_by": "tokens"}, "normalize_by='tokens'"),
    ],
)
def test_invalid_options_are_errors_before_training(config, message):
    with pytest.raises(ValueError, match=message):
        options_from_config(config)
