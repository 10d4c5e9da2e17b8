"""Number-aware losses for language models.

Cross-entropy cannot tell that 3 is closer to 4 than 9 is; a number token loss can:

    loss_fn = NTLCrossEntropyLoss(tokenizer)  # cross-entropy + 0.3 * the number term
    loss = loss_fn(logits, labels)
"""

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
