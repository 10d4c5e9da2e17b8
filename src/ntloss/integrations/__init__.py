"""One line in your own training code; each file needs what it is named after, installed as an extra.

    ntloss.integrations.transformers    Trainer, Seq2SeqTrainer, and any loop over a transformers model
    ntloss.integrations.trl             TRL's SFTTrainer

docs/integrations.md has the lines.
"""
