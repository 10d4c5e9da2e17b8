"""Integrations with training libraries.

`transformers`, `callback` and `trl` need an extra; the others need torch alone.

    ntloss.integrations.transformers    Trainer, Seq2SeqTrainer, and any loop over a transformers model
    ntloss.integrations.callback        logs how well numbers are predicted, to all trackers of a Trainer
    ntloss.integrations.trl             TRL's SFTTrainer
    ntloss.integrations.rewards         a reward function for TRL's GRPOTrainer
    ntloss.integrations.options         options of the loss in a configuration file
    ntloss.integrations.collator        pads weights of the number term in batches of your own loop

docs/integrations.md shows how to use them.
"""
