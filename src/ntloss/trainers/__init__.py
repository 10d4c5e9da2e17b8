"""Number-aware losses in trainers; docs/train.md shows how to use them.

make_number_aware(trainer)  # a Trainer or Seq2SeqTrainer of transformers, an SFTTrainer of TRL

module          for
number_aware    `make_number_aware`: a trainer's `compute_loss` gets a number-aware loss
answering       the model that the trainer's own methods get: called with labels, it has the loss
evaluation      sums of the loss's terms over an evaluation
models          how a model is called for logits alone, and what else its own loss holds
columns         the dataset columns `loss_weights`, `number_weights`, `number_sigma` and `soft_labels`
chunked         the loss in a model's head, from hidden states, so that logits are never whole
first_labels    what is logged of the first labels, and warnings if the loss sees no numbers
errors          `NumberErrors`, a callback: the errors of answers at each evaluation
rewards         `number_reward` for TRL's GRPOTrainer, and `compute_score` for verl
plug_ins        the options of the plug-ins below
ms_swift        ms-swift 4.6, as an external plug-in
llamafactory    LLaMA-Factory 0.9.5, as a command
axolotl         axolotl 0.19, as a plug-in
torchtitan      torchtitan 0.3, as a function of its configuration
"""

from ntloss.trainers.columns import PREPARED
from ntloss.trainers.number_aware import NumberAware, make_number_aware

__all__ = ["make_number_aware", "NumberAware", "PREPARED"]
