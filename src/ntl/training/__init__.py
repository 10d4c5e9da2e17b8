"""Train one model in a run's folder."""
