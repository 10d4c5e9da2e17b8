"""The stages of a number token loss: targets, readout of the logits, terms, reduction."""
