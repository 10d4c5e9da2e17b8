"""Integrations with training libraries, one module each; docs/integrations.md shows how to use them.

module          connects                                                      needs
transformers    Trainer, Seq2SeqTrainer, any loop over a transformers model   extra transformers
callback        metrics of numbers in the logs of a Trainer                   extra transformers
trl             TRL's SFTTrainer                                              extra trl
rewards         rewards for TRL's GRPOTrainer and verl                        torch
collator        weights of the number term in batches of your own loop        torch
options         options of the loss in a configuration file                   torch
ms_swift        ms-swift, as an external plug-in                              ms-swift 4.6
llamafactory    LLaMA-Factory, as a command or a callback                     LLaMA-Factory 0.9.5
axolotl         axolotl, as a plug-in                                         axolotl 0.19
torchtitan      torchtitan, as a function of its configuration                torchtitan 0.3
"""
