import datasets
import pytest

from ntl.data import Example
from ntl.errors import UserError

GSM8K = {"hub": "openai/gsm8k", "validation_share": 0.25, "data_dir": "nowhere"}
MULTIRC = {"hub": "aps/super_glue", "validation_share": 0.25, "data_dir": "nowhere"}


@pytest.fixture
def hub(monkeypatch):
    """A fake hub that maps (id, subset, split) to rows."""
    held = {}

    def load_dataset(name, subset, split):
        return datasets.Dataset.from_list(held[name, subset, split])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return held


def test_problems_from_the_hub_equal_those_of_the_official_files(hub, load):
    rows = [{"question": f"Is it {i},000?", "answer": f"<<1=1>>Yes.\n#### {i},000"} for i in range(8)]
    hub["openai/gsm8k", "main", "train"] = rows
    hub["openai/gsm8k", "main", "test"] = rows[:3]
    data = load("gsm8k", **GSM8K)
    assert (len(data.train), len(data.validation), len(data.tests["test"])) == (6, 2, 3)
    assert data.tests["test"][1] == Example("Is it 1000?", "Yes.\n#### 1000")
    assert data.final_answer_marker == "####"
    kept = load("gsm8k", **GSM8K, annotations="keep")
    assert kept.tests["test"][1].answer == "<<1=1>>Yes.\n#### 1000"


def test_the_hubs_answers_to_one_question_are_joined(hub, load):
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
    data = load("multirc", **MULTIRC)
    assert (len(data.train), len(data.validation)) == (3, 1)
    assert list(data.tests["test"]) == [Example("Text 0.\n\nQuestion: Who?", "Ann | Cleo")]
    assert not data.number_metrics


def test_malformed_rows_are_an_error_that_names_the_key(hub, load):
    hub["openai/gsm8k", "main", "train"] = hub["openai/gsm8k", "main", "test"] = [{"text": "hello"}]
    with pytest.raises(UserError, match=r"dataset_args.hub=openai/gsm8k .*'question'"):
        load("gsm8k", **GSM8K)


@pytest.mark.parametrize(("name", "settings"), [("gsm8k", GSM8K), ("multirc", MULTIRC)])
def test_a_missing_connection_is_an_error(monkeypatch, tmp_path, load, name, settings):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(UserError, match=r"dataset_args.hub="):
        load(name, **settings)
