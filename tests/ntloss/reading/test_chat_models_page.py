"""The snippets of docs/chat_models.md run on a tiny model, and on SmolLM2 where it is installed."""

from typing import Any

import pytest
import torch
from pages import readers_names, snippets

from ntloss.numbers import NumberFormat
from ntloss.reading import UnlikelyNumberWarning, number_quantiles, read_number

pytestmark = pytest.mark.filterwarnings("ignore::ntloss.reading.UnlikelyNumberWarning")
SNIPPETS = snippets("docs/chat_models.md")
TEMPLATE = "{% for message in messages %}{{ message['role'] }}:{{ message['content'] }}\n{% endfor %}"


def run_page(tokenizer, model, monkeypatch):
    import transformers

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *args, **options: tokenizer)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda *args, **options: model)
    names: dict[str, Any] = {}
    for snippet in SNIPPETS:
        exec(snippet, names)
    return names


def test_the_page_runs_on_a_tiny_model(tmp_path, monkeypatch):
    reader = readers_names(tmp_path)
    tokenizer = reader["tokenizer"]
    tokenizer.chat_template, tokenizer.padding_side = TEMPLATE, "left"
    names = run_page(tokenizer, reader["model"].eval(), monkeypatch)
    assert names["reading"].low <= names["reading"].median <= names["reading"].high
    assert len(names["medians"]) == 2


@pytest.mark.pretrained
def test_the_page_says_what_smollm2_writes(smollm2, monkeypatch):
    tokenizer, model = smollm2
    names = run_page(tokenizer, model, monkeypatch)
    assert str(names["reading"]) == "11 [2, 29]"
    assert 0.6 < names["reading"].starts < 0.7
    details = names["reading"].details
    assert details.lower[0, 0] >= 1.5
    assert details.upper[0, 2] <= 35
    # A width that is too large.
    with pytest.warns(UnlikelyNumberWarning, match="fewer digits"):
        wide = read_number(model, tokenizer, "12 + 13 =", "12 + 13 = ", format=NumberFormat(digits=3))
    assert wide.median == 251
    assert wide.ends < 0.1


@pytest.mark.pretrained
def test_smollm2s_padded_batch_gives_the_quantiles_of_single_prompts(smollm2):
    from ntloss import NumberVocabulary

    tokenizer, model = smollm2
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, vocab_size=model.config.vocab_size)
    prompts = ["The price is $", "Speed of a cheetah in km/h: ", "He died at the age of "]

    def read(texts):
        inputs = tokenizer(texts, padding=True, return_tensors="pt")
        return number_quantiles(model, inputs, vocabulary, format=NumberFormat(digits=2)).values

    # A quantile at which two digits meet may go to either.
    assert (read(prompts) == torch.cat([read([prompt]) for prompt in prompts])).double().mean() >= 8 / 9
