"""The configuration's files: Hydra finds them by this package's name."""
