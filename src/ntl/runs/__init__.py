"""A run trains and evaluates one model; a sweep executes several runs and reports them."""
