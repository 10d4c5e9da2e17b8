"""One line in your own training code; each file needs what it is named after, installed as an extra.

    ntloss.integrations.transformers    Trainer, Seq2SeqTrainer, and any loop over a transformers model
    ntloss.integrations.callback        logs how well numbers are predicted, to what a Trainer reports to
    ntloss.integrations.trl             TRL's SFTTrainer
    ntloss.integrations.counts          loops of one's own, Lightning, accelerate

docs/integrations.md has the lines.
"""
