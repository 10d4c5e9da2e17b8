from dataclasses import replace

import datasets
import pytest

from ntl.config import Gsm8k, Multirc
from ntl.data import Example, load_task
from ntl.errors import UserError

GSM8K = Gsm8k(hub="openai/gsm8k", validation_share=0.25)
MULTIRC = Multirc(hub="aps/super_glue", validation_share=0.25)


@pytest.fixture
def hub(monkeypatch):
    """A fake hub that maps (id, subset, split) to rows."""
    held = {}

    def load_dataset(name, subset, split):
        return datasets.Dataset.from_list(held[name, subset, split])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return held


def load(settings, tmp_path):
    return load_task(replace(settings, data_dir="nowhere", cache_dir=str(tmp_path / "cache")))


def test_problems_from_the_hub_equal_those_of_the_official_files(hub, tmp_path):
    rows = [{"question": f"Is it {i},000?", "answer": f"<<1=1>>Yes.\n#### {i},000"} for i in range(8)]
    hub["openai/gsm8k", "main", "train"] = rows
    hub["openai/gsm8k", "main", "test"] = rows[:3]
    data = load(GSM8K, tmp_path)
    assert (len(data.train), len(data.validation), len(data.tests["test"])) == (6, 2, 3)
    assert data.tests["test"][1] == Example("Is it 1000?", "Yes.\n#### 1000")
    assert data.final_answer_marker == "####"
    assert list(data.train) == list(load(GSM8K, tmp_path).train)
    assert list(data.train) != list(load(replace(GSM8K, annotations="keep"), tmp_path).train)


def test_the_hubs_answers_to_one_question_are_joined(hub, tmp_path):
    def row(text, question, answer, label):
        return {"paragraph": text, "question": question, "answer": answer, "label": label}

    rows = [
        row(f"Text {i}.", question, answer, label)
        for i in range(4)
        for question, answer, label in (
            ("Who?", "Ann", 1),
            ("Who?", "Bob", 0),
            ("Who?", "Cleo", 1),
            ("Why?", "No", 0),
        )
    ]
    hub["aps/super_glue", "multirc", "train"] = rows
    hub["aps/super_glue", "multirc", "validation"] = rows[:4]
    data = load(MULTIRC, tmp_path)
    assert (len(data.train), len(data.validation)) == (3, 1)
    assert list(data.tests["test"]) == [Example("Text 0.\n\nQuestion: Who?", "Ann | Cleo")]
    assert not data.number_metrics


def test_malformed_rows_are_an_error(hub, tmp_path):
    hub["openai/gsm8k", "main", "train"] = hub["openai/gsm8k", "main", "test"] = [{"text": "hello"}]
    with pytest.raises(UserError, match=r"hub=openai/gsm8k .*expected an object with the key 'question'"):
        load(GSM8K, tmp_path)


@pytest.mark.parametrize("settings", [GSM8K, MULTIRC], ids=["gsm8k", "multirc"])
def test_a_missing_connection_is_an_error_that_suggests_a_local_folder(monkeypatch, tmp_path, settings):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    complaint = r"hub=.* cannot be loaded from the hub .*pass dataset_args.hub=null dataset_args.data_dir="
    with pytest.raises(UserError, match=complaint):
        load(settings, tmp_path)
