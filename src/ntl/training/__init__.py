"""Train models: a run trains and evaluates one model, a sweep does several runs."""
