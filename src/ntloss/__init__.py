"""Number-aware losses for language models.

Cross-entropy cannot tell that 3 is closer to 4 than 9 is; a number token loss can:

    loss_fn = NTLCrossEntropyLoss(tokenizer)  # cross-entropy + 0.3 * the number term
    loss = loss_fn(logits, labels)
"""

import typing as _typing
from importlib import import_module as _import_module

if _typing.TYPE_CHECKING:
    from ntloss.criteria import (
        HLGauss,
        SoftTargets,
        crps,
        del_loss,
        dist2,
        gaussian_smoothing,
        ntil,
        ntl_huber,
        ntl_mae,
        ntl_mse,
        ntl_was,
        number_level,
        raft,
        smmd,
        smoothed_wasserstein,
        soft_labels_of,
    )
    from ntloss.engine.targets import PreparedLabels
    from ntloss.engine.terms import LossTerms
    from ntloss.losses import NTLCrossEntropyLoss
    from ntloss.numbers.vocabulary import NumberVocabulary
    from ntloss.options import options_loss
    from ntloss.published import NTLoss, NTLossDotProduct, NumberLevelLoss
    from ntloss.reading.read import read_number
    from ntloss.regression.estimator import NumberRegressor
    from ntloss.trainers.number_aware import make_number_aware

__version__ = "1.0.0"

__all__ = [
    # train a model, read numbers out of it, predict numbers from texts and tables
    "make_number_aware",
    "read_number",
    "NumberRegressor",
    # which tokens are numbers
    "NumberVocabulary",
    # cross-entropy and number term together
    "NTLCrossEntropyLoss",
    "LossTerms",
    "PreparedLabels",
    # cross-entropy and a criterion over given options
    "options_loss",
    # labels that are distributions
    "SoftTargets",
    "soft_labels_of",
    # criteria: how wrong a number is; ntloss.criteria has what they are made of
    "ntl_was",
    "ntl_mse",
    "ntl_mae",
    "ntl_huber",
    "crps",
    "number_level",
    "HLGauss",
    # criteria of others
    "gaussian_smoothing",
    "smoothed_wasserstein",
    "dist2",
    "del_loss",
    "smmd",
    "ntil",
    "raft",
    # the losses of ntloss 0.3.2
    "NTLoss",
    "NTLossDotProduct",
    "NumberLevelLoss",
]

_HOMES = (
    "criteria",
    "engine.targets",
    "engine.terms",
    "losses",
    "numbers.vocabulary",
    "options",
    "published",
)
# These need packages that the losses do not need.
_OWN_HOME = {
    "make_number_aware": "trainers.number_aware",
    "read_number": "reading.read",
    "NumberRegressor": "regression.estimator",
}


if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a name, and torch with it, when it is used, so that `ntloss.scores` needs no torch."""
        if name in __all__:
            for home in [_OWN_HOME[name]] if name in _OWN_HOME else _HOMES:
                module = _import_module(f"ntloss.{home}")
                if hasattr(module, name):
                    globals()[name] = getattr(module, name)
                    return globals()[name]
            # One of these modules, half imported, asks for it.
            raise AttributeError(f"module 'ntloss' has no attribute {name!r} yet: the import is circular")
        try:
            return _import_module(f"ntloss.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"ntloss.{name}":
                raise
            raise AttributeError(f"module 'ntloss' has no attribute {name!r}") from None

    def __dir__() -> list[str]:
        """List the names that are imported when they are used, too."""
        return sorted({*globals(), *__all__})
