import json

import pytest
from data_cases import write

from ntl.errors import UserError


def passage(text, *questions):
    entries = [
        {"question": question, "answers": [{"text": answer, "label": label} for answer, label in answers]}
        for question, answers in questions
    ]
    return json.dumps({"idx": 0, "passage": {"text": text, "questions": entries}}) + "\n"


def test_correct_answers_are_joined_and_passages_are_not_divided(load, tmp_path):
    asked = ("Who?", [("Ann", 1), ("Bob", 0), ("Cleo", 1)]), ("Where?", [("Home", 1)]), ("Why?", [("No", 0)])
    lines = "".join(passage(f"Text {i}.", *asked) for i in range(10))
    folder = write(tmp_path / "data", {"train.jsonl": lines, "val.jsonl": passage("Test.", *asked)})
    data = load("multirc", data_dir=folder, validation_share=0.2)
    assert [e.answer for e in data.tests["test"]] == ["Ann | Cleo", "Home"]  # Why has no correct answer
    assert data.tests["test"][0].question == "Test.\n\nQuestion: Who?"
    texts = [{e.question.split("\n")[0] for e in part} for part in (data.train, data.validation)]
    assert [len(text) for text in texts] == [8, 2]
    assert not texts[0] & texts[1]


def test_a_malformed_passage_is_an_error_that_names_file_line_and_key(load, tmp_path):
    good = passage("Text.", ("Who?", [("Ann", 1)]))
    for odd, named in (
        ('{"idx": 1}', "passage"),
        (good.replace('"label": 1', '"other": 1'), "label"),
        (good.replace('"Text."', "7"), "text"),
        (good.replace('"questions": [', '"questions": [5, '), "question"),
    ):
        folder = write(tmp_path / "data", {"train.jsonl": good + odd, "val.jsonl": good})
        with pytest.raises(UserError, match=f"train.jsonl, line 2: .*'{named}'"):
            load("multirc", data_dir=folder)
