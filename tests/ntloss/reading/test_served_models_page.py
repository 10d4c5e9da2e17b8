"""The snippet of docs/served_models.md runs with a server."""

from typing import Any

import pytest
from form_server import TEXTS, serving
from pages import snippets
from reading_cases import make_model

import ntloss.reading.served as served

pytest.importorskip("httpx2")
pytestmark = pytest.mark.filterwarnings("ignore::ntloss.reading.UnlikelyNumberWarning")


def test_the_page_reads_a_server(monkeypatch):
    names: dict[str, Any] = {}
    page = snippets("docs/served_models.md")
    texts = [*TEXTS, *sorted({*"Review: It broke after a day.\nScore from 00 to 99: love"} - {*TEXTS})]
    with serving("vllm", make_model("llama", len(texts)), texts=texts) as server:
        connect = served.ServedModel
        monkeypatch.setattr(served, "ServedModel", lambda url: connect(server.url))
        for snippet in page:
            exec(snippet, names)
    (reading,) = names["readings"]
    assert 0 <= reading.low <= reading.median <= reading.high < 100
    assert names["intervals"][0] == (reading.low, reading.median, reading.high)
