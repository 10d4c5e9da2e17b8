"""Number-aware losses for language models.

Cross-entropy cannot tell that 3 is closer to 4 than 9 is; a number token loss can:

    loss = cross_entropy(logits, labels) + 0.3 * NTLoss(tokenizer)(logits, labels)
"""

from ntloss.criteria import (
    CRPS,
    SMMD,
    Criterion,
    CriterionInput,
    DigitEntropy,
    Dist2,
    ExpectedValue,
    GaussianCrossEntropy,
    Magnitude,
    Needs,
    NumberLevel,
    PerNumber,
    PlaceWeighted,
    RelativeError,
    SmoothedWasserstein,
    Wasserstein,
    WeightedSum,
    criterion_names,
    get_criterion,
    ntil,
    register_criterion,
)
from ntloss.cross_entropy import NTLCrossEntropyLoss, NTLLinearCrossEntropyLoss
from ntloss.engine.objective import LossTerms
from ntloss.losses import NumberTokenLoss
from ntloss.metrics import NumericMetrics
from ntloss.number_level import NumberLevelLoss
from ntloss.published import NTLoss, NTLossDotProduct
from ntloss.schedules import After, Constant, Cosine, LinearWarmup, WeightScheduler
from ntloss.token_metrics import TokenMetrics
from ntloss.vocabulary import Coverage, NumberToken, NumberTokensLeftOut, NumberVocabulary

__version__ = "1.0.0.dev0"

__all__ = [
    # which tokens are numbers
    "NumberVocabulary",
    "NumberToken",
    "NumberTokensLeftOut",
    "Coverage",
    # losses: nn.Modules (their functions are in ntloss.functional)
    "NTLoss",
    "NTLossDotProduct",
    "NumberLevelLoss",
    "NumberTokenLoss",
    # with cross-entropy in one go
    "NTLCrossEntropyLoss",
    "NTLLinearCrossEntropyLoss",
    "LossTerms",
    # how wrong a number is
    "Wasserstein",
    "CRPS",
    "ExpectedValue",
    "GaussianCrossEntropy",
    "SmoothedWasserstein",
    "Dist2",
    "DigitEntropy",
    "SMMD",
    # ... and how wrong a whole number
    "NumberLevel",
    "RelativeError",
    "Magnitude",
    "ntil",
    # made of others, or by name
    "PlaceWeighted",
    "PerNumber",
    "WeightedSum",
    "get_criterion",
    "register_criterion",
    "criterion_names",
    # for writing one
    "Criterion",
    "CriterionInput",
    "Needs",
    # how much it counts at each step
    "WeightScheduler",
    "Constant",
    "LinearWarmup",
    "Cosine",
    "After",
    # how good predicted numbers are (reading them out: ntloss.decoding, ntloss.parsing)
    "NumericMetrics",
    "TokenMetrics",
]
