"""The lab: reproduce, compare and extend the number token loss paper.

`ntl.fit(table, target="price")` trains a model on a table of your own, and `ntl.load(run)` loads a trained
model to predict with; see `ntl.fitting.fit` and `ntl.predictor.load`.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import `fit` and `load` when they are used, because they need transformers."""
    if name == "fit":
        from ntl.fitting import fit

        return fit
    if name == "load":
        from ntl.predictor import load

        return load
    raise AttributeError(f"module 'ntl' has no attribute {name!r}")
