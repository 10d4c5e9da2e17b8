"""Number-aware losses in models and trainers of transformers.

make_trainer_number_aware(trainer)                      a Trainer or Seq2SeqTrainer, in one line
handle = make_number_aware(model, tokenizer)            any loop: model(**batch).loss has it
Trainer(compute_loss_func=NumberAwareLoss(model, tokenizer))   and count_numbers(trainer)
"""

from ntloss.integrations.transformers.model import NumberAwareModel, handle_of, make_number_aware
from ntloss.integrations.transformers.trainer import (
    NumberAwareLoss,
    NumberCountingMixin,
    WeightScheduleCallback,
    count_numbers,
    make_trainer_number_aware,
)

__all__ = [
    # the model's own loss
    "make_number_aware",
    "NumberAwareModel",
    "handle_of",
    # a Trainer, in one line
    "make_trainer_number_aware",
    # ... or in its parts
    "NumberAwareLoss",
    "count_numbers",
    "NumberCountingMixin",
    "WeightScheduleCallback",
]
