"""The losses in the training code that people already have; one file each, each with its optional extra."""
