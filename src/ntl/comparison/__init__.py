"""`ntl compare`: the same small T5 with several objectives and seeds; it starts in `program`."""
