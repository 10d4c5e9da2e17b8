"""Number-aware losses for language models.

Cross-entropy cannot tell that 3 is closer to 4 than 9 is; a number token loss can:

    loss_fn = NTLCrossEntropyLoss(tokenizer)  # cross-entropy + 0.3 * the number term
    loss = loss_fn(logits, labels)
"""

import typing as _typing
from importlib import import_module as _import_module

if _typing.TYPE_CHECKING:
    from ntloss.criteria import (
        CRPS,
        SMMD,
        CriterionInput,
        DigitEntropy,
        Dist2,
        ExpectedValue,
        GaussianCrossEntropy,
        HLGauss,
        Needs,
        NumberLevel,
        Reweighed,
        Wasserstein,
        criterion_names,
        get_criterion,
        ntil,
        register_criterion,
    )
    from ntloss.cross_entropy import NTLCrossEntropyLoss, NTLLinearCrossEntropyLoss
    from ntloss.engine.objective import LossTerms
    from ntloss.losses import NumberTokenLoss
    from ntloss.numbers.vocabulary import NumberVocabulary
    from ntloss.published import NTLoss, NTLossDotProduct, NumberLevelLoss

__version__ = "1.0.0"

# Metrics are in ntloss.metrics, further criteria in ntloss.criteria.
__all__ = [
    # which tokens are numbers
    "NumberVocabulary",
    # cross-entropy and number term together: nn.Modules
    "NTLCrossEntropyLoss",
    "NTLLinearCrossEntropyLoss",
    "LossTerms",
    # the number term alone
    "NumberTokenLoss",
    # the losses of ntloss 0.3.2
    "NTLoss",
    "NTLossDotProduct",
    "NumberLevelLoss",
    # criteria: how wrong a number is
    "Wasserstein",
    "CRPS",
    "ExpectedValue",
    "SMMD",
    "GaussianCrossEntropy",
    "Dist2",
    "DigitEntropy",
    "HLGauss",
    "NumberLevel",
    "ntil",
    "Reweighed",
    # criteria by name
    "get_criterion",
    "register_criterion",
    "criterion_names",
    # for your own criterion
    "CriterionInput",
    "Needs",
]

_HOMES = ("criteria", "cross_entropy", "engine.objective", "losses", "numbers.vocabulary", "published")


if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import all names, and torch, when the first is used, so that `ntloss --help` does not wait."""
        if name in __all__:
            for home in _HOMES:
                module = _import_module(f"ntloss.{home}")
                globals().update({each: getattr(module, each) for each in __all__ if hasattr(module, each)})
            if name not in globals():  # one of these modules, half imported, asks for it
                raise AttributeError(f"module 'ntloss' has no attribute {name!r} yet: the import is circular")
            return globals()[name]
        try:
            return _import_module(f"ntloss.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"ntloss.{name}":
                raise
            raise AttributeError(f"module 'ntloss' has no attribute {name!r}") from None

    def __dir__() -> list[str]:
        """List the names that are imported when they are used, too."""
        return sorted({*globals(), *__all__})
