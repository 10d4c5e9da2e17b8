"""Number-aware losses for language models.

Cross-entropy cannot tell that 3 is closer to 4 than 9 is; a number token loss can:

    loss = cross_entropy(logits, labels) + 0.3 * NTLoss(tokenizer)(logits, labels)
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
    SmoothedWasserstein,
    Wasserstein,
    criterion_names,
    get_criterion,
    ntil,
    register_criterion,
)
from ntloss.cross_entropy import NTLCrossEntropyLoss, NTLLinearCrossEntropyLoss
from ntloss.engine.objective import LossTerms
from ntloss.losses import NumberTokenLoss
from ntloss.metrics import NumericMetrics, QuantileMetrics, TokenMetrics
from ntloss.numbers.vocabulary import NumberTokensLeftOut, NumberVocabulary
from ntloss.published import NTLoss, NTLossDotProduct, NumberLevelLoss
from ntloss.schedules import WeightScheduler

__version__ = "1.0.0"

__all__ = [
    # which tokens are numbers
    "NumberVocabulary",
    "NumberTokensLeftOut",
    # losses: nn.Modules
    "NTLoss",
    "NTLossDotProduct",
    "NumberLevelLoss",
    "NumberTokenLoss",
    # cross-entropy and number term together
    "NTLCrossEntropyLoss",
    "NTLLinearCrossEntropyLoss",
    "LossTerms",
    # criteria: how wrong a number is
    "Wasserstein",
    "CRPS",
    "ExpectedValue",
    "GaussianCrossEntropy",
    "SmoothedWasserstein",
    "Dist2",
    "DigitEntropy",
    "SMMD",
    # criteria on whole numbers; further ones, and combinations, are in ntloss.criteria
    "HLGauss",
    "NumberLevel",
    "ntil",
    # criteria by name
    "get_criterion",
    "register_criterion",
    "criterion_names",
    # for your own criterion
    "CriterionInput",
    "Needs",
    # the number term's weight at each step
    "WeightScheduler",
    # metrics of predicted numbers (ntloss.decoding and ntloss.numbers.parsing obtain the numbers)
    "NumericMetrics",
    "QuantileMetrics",
    "TokenMetrics",
]
