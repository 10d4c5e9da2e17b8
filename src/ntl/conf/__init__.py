"""The files of the configuration, which Hydra finds by this package's name."""
