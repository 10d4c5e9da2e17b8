"""How a number token loss is computed: readout of the logits, then a criterion, then a reduction."""
