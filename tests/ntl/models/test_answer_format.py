import json

import pytest
import torch
from model_cases import ANSWERS, GREEDY, QUESTIONS, make, rows_of, saved
from tokenizers_like import tokenizer_like

from ntl.data import Example, TaskData
from ntl.encodings.digits import TextEncoding, load_tokenizer
from ntl.errors import UserError
from ntl.evaluate import Evaluation, score_answers

MODELS = {  # tokenizer, shape, family
    "shipped": (None, "t5-tiny", "t5"),
    "t5": (tokenizer_like("t5"), "t5-tiny", "t5"),
    "gpt2": (tokenizer_like("gpt2"), "llama-tiny", "decoder_only"),
}
FORMATS = {"whole": ["7", "188"], "signed": ["-2.125", "10"]}


def padded(kind="shipped", answers=ANSWERS, **settings):
    tokenizer, shape, family = MODELS[kind]
    built = make(shape, family=family, tokenizer=tokenizer, number_format="padded", **settings)
    built.fit(answers)
    return built


def allowed_after(built, *tokens):
    return built.answer_format.mask.rows(torch.tensor([tokens], dtype=torch.long))[0]


@pytest.mark.parametrize("answers", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("encoding", ["digits", "auto"])
@pytest.mark.parametrize("kind", MODELS)
def test_the_mask_allows_numbers_in_the_format_and_nothing_else(kind, encoding, answers):
    built = padded(kind, answers, encoding=encoding)
    mask, number_format, tokenizer = (
        built.answer_format.mask,
        built.answer_format.form.numbers,
        built.tokenizer,
    )
    random = torch.Generator().manual_seed(0)
    ids = torch.zeros(40, 0, dtype=torch.long)
    for _ in range(mask.longest):
        ids = torch.cat([ids, torch.multinomial(mask.rows(ids).double(), 1, generator=random)], 1)
    assert (ids[:, -1] == tokenizer.eos_token_id).all()
    texts = [text.strip() for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]
    assert len({number_format.read(text) for text in texts}) > 5
    written = [number_format.write(str(number_format.read(text))) for text in texts]
    for row in TextEncoding(tokenizer).encode(written, special_tokens=False):
        row.append(tokenizer.eos_token_id)
        for i, token in enumerate(row):
            assert allowed_after(built, *row[:i])[token]


def test_with_digits_as_tokens_no_token_of_several_digits_is_allowed():
    built = padded("t5", ["188"])
    (digit,) = built.tokenizer.convert_tokens_to_ids(["4"])
    allowed = torch.stack([allowed_after(built, *[digit] * i) for i in range(4)]).any(0)
    tokens = built.tokenizer.convert_ids_to_tokens(allowed.nonzero().flatten().tolist())
    assert sorted(tokens) == [*"0123456789", "</s>", "▁"]


def test_the_end_of_a_complete_number_does_not_rank_beams():
    built = padded("t5", ["18"])
    end, (digit,) = built.tokenizer.eos_token_id, built.tokenizer.convert_tokens_to_ids(["4"])
    mask, scores = built.answer_format.mask, torch.full((1, len(built.tokenizer)), -9.0)
    assert mask(torch.tensor([[digit] * 2]), scores)[0, end] == 0
    assert mask(torch.tensor([[digit]]), scores)[0, end] == -float("inf")


def test_a_tokenizer_that_cannot_write_the_format_is_an_error(tmp_path):
    tokenizer = load_tokenizer(None)
    vocabulary = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary["model"]["vocab"]["plus"] = vocabulary["model"]["vocab"].pop("+")
    tokenizer._tokenizer = type(tokenizer.backend_tokenizer).from_str(json.dumps(vocabulary))
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"\+00"):
        make(tokenizer=str(tmp_path), encoding="auto", number_format="padded").fit(["-10"])


def test_a_test_answer_that_does_not_fit_is_counted_and_encoded_as_it_is():
    built = padded(answers=["7", "188"])
    asked, answers = ["1 + 1", "99 * 99", "1 - 2", "1 / 2"], ["2", "9801", "-1", "0.5"]
    labels = [row["labels"] for row in rows_of(built, asked, answers)]
    assert built.encoding.decode(labels) == ["002", "9801", "-1", "0.5"]
    tests = [*map(Example, asked, answers)]
    result = score_answers(built, tests, TaskData([], [], {}), Evaluation(beams=1, max_new_tokens=12))
    assert result.metrics["outside_format"] == 3
    assert result.metrics["invalid"] == 0
    wrong = [p["predicted"] != p["true"] for p in result.predictions]
    assert wrong[1:] == [True] * 3


@pytest.mark.parametrize(
    ("settings", "answers", "misfits"),
    [({}, ["7", "188"], ["1234", "-1"]), ({"number_scale": "log"}, ["7", "188"], ["0", "1e30"])],
)
def test_training_on_answers_outside_an_earlier_format_is_an_error(settings, answers, misfits, tmp_path):
    built = padded(answers=answers, **settings)
    number_format = built.answer_format.form
    built = saved(built, tmp_path, {"number_format": "padded", **settings})
    built.fit(["12"])
    assert built.answer_format.form == number_format
    for misfit in misfits:
        with pytest.raises(UserError, match="number_format=padded"):
            built.fit(["12", misfit])


def test_answering_before_fit_is_an_error_with_padded_answers():
    with pytest.raises(UserError, match="number_format=padded"):
        make(number_format="padded").answer(QUESTIONS, *GREEDY)
