"""`ntl compare`: train the same small T5 with several objectives and seeds. `program` is the entry point."""
