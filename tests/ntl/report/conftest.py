from pathlib import Path

import pytest


@pytest.fixture
def quick_figures(monkeypatch):
    """Write figures without rendering them, which takes seconds; test_figures.py renders them."""
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda figure, path, **_: Path(path).write_text("drawn")
    )
