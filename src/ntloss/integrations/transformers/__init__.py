"""Number-aware losses in models and trainers of transformers.

make_trainer_number_aware(trainer)  # a Trainer or Seq2SeqTrainer
handle = make_number_aware(model, tokenizer)  # your own loop: model(**batch).loss includes it
"""

from ntloss.integrations.transformers.model import NumberAwareModel, handle_of, make_number_aware
from ntloss.integrations.transformers.trainer import (
    AnnealCallback,
    WeightScheduleCallback,
    make_trainer_number_aware,
)

__all__ = [
    "make_number_aware",
    "NumberAwareModel",
    "handle_of",
    "make_trainer_number_aware",
    "AnnealCallback",
    "WeightScheduleCallback",
]
