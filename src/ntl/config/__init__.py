"""The configuration's files, which Hydra finds by this package's name."""
