"""Train models: an experiment is a checked configuration, and a run's folder holds its results."""
