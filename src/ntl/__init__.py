"""The lab: reproduce, compare and extend the number token loss paper.

`ntl.load(run)` loads a trained model to predict with; see `ntl.predict.load`.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import `load` when it is used, because it needs transformers."""
    if name == "load":
        from ntl.predict import load

        return load
    raise AttributeError(f"module 'ntl' has no attribute {name!r}")
