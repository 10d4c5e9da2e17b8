"""Train models: a run trains and evaluates one model, a sweep executes several runs."""
