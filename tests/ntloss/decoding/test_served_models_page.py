"""The snippet of docs/served_models.md runs with a server."""

from typing import Any

import pytest
from decoding_cases import make_model
from form_server import TEXTS, serving
from pages import snippets

import ntloss.decoding.served as served

pytest.importorskip("httpx2")
pytestmark = pytest.mark.filterwarnings("ignore::ntloss.decoding.UnlikelyNumberWarning")


def test_the_page_reads_a_server(monkeypatch):
    names: dict[str, Any] = {}
    (snippet,) = snippets("docs/served_models.md")
    texts = [*TEXTS, *sorted({*"Review: It broke after a day.\nScore from 00 to 99: "} - {*TEXTS})]
    with serving("vllm", make_model("llama", len(texts)), texts=texts) as server:
        connect = served.ServedModel
        monkeypatch.setattr(served, "ServedModel", lambda url: connect(server.url))
        exec(snippet, names)
    read = names["read"]
    assert read.values.shape == (1, 3)
    assert read.values.max() < 100
