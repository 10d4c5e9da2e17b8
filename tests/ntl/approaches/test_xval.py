import pytest
import torch
import torch.nn.functional as F
from approach_cases import (
    ANSWERS,
    CE,
    GREEDY,
    QUESTIONS,
    assert_the_same,
    gradient,
    make,
    model_args,
    overfit,
    rows_of,
    save_pretrained_t5,
    saved,
)
from tolerances import TRAINED_BY_ADAM, approx, assert_close

from ntl.approaches import IGNORE, build_approach
from ntl.errors import UserError
from ntloss.numbers.parsing import parse_number


def xval(**settings):
    approach = make(encoding="xval", loss=CE, **settings)
    approach.fit(ANSWERS)
    return approach


def test_the_linear_scale_is_saved_with_the_model_and_not_confused_with_the_log_scale(tmp_path):
    approach = xval(log_scale=False)
    other = saved(approach, tmp_path, {"encoding": "xval", "log_scale": False}, CE)
    assert_the_same(approach, other, GREEDY)
    with pytest.raises(UserError, match="log_scale=False; expected True"):
        build_approach(model_args(checkpoint=str(tmp_path), encoding="xval"), CE)


def test_the_loss_is_the_mean_of_cross_entropy_and_standardized_squared_error():
    approach = xval(log_scale=False)
    batch = approach.collate(rows_of(approach))
    values = torch.tensor([float(a) for a in ANSWERS])
    share = approach.loss(approach.model, batch, approach.count(batch))
    output = approach.model(
        **{k: batch[k] for k in ("input_ids", "attention_mask", "numbers")},
        decoder_input_ids=torch.tensor([[0, approach.encoding.number_id]] * len(ANSWERS)),
        decoder_numbers=torch.stack([torch.zeros(6), values], 1).double(),
    )
    ce = F.cross_entropy(output.logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORE)
    target = (values - values.mean()) / values.std(correction=0)
    number = F.mse_loss(output.numbers[:, 0], target)
    assert_close(share.loss, (ce + number) / 2)
    assert_close(share.terms, {"ce": ce.detach(), "number": number.detach()})
    assert approach.count(batch).tolist() == [12, 6]


def test_generation_feeds_predicted_numbers_back():
    approach = overfit(xval(), steps=30)
    question = "1 + 1"
    text = approach.answer(approach.model, [question], GREEDY)[0]
    # Teacher-forced with its own answer, the model predicts the same answer.
    batch = approach.collate(rows_of(approach, [question], [text]))
    approach.model.eval()
    output = approach.model(
        **{k: batch[k] for k in ("input_ids", "attention_mask", "numbers")},
        decoder_input_ids=approach.model.prepare_decoder_input_ids_from_labels(batch["labels"]),
        decoder_numbers=F.pad(batch["label_numbers"][:, :-1], (1, 0)),
    )
    assert output.logits.argmax(-1).tolist() == batch["labels"].tolist()


def test_answers_do_not_depend_on_the_batch():
    approach = overfit(xval(), steps=30)
    together = approach.answer(approach.model, QUESTIONS, GREEDY)
    alone = [approach.answer(approach.model, [q], GREEDY)[0] for q in QUESTIONS]
    numbers = [[parse_number(text) for text in texts] for texts in (together, alone)]
    assert numbers[0] == approx(numbers[1], TRAINED_BY_ADAM, scale=1)


def test_numbers_of_any_size_give_a_finite_loss_and_gradient():
    for log_scale in (True, False):
        approach = make(encoding="xval", loss=CE, log_scale=log_scale)
        answers = ["1" + "0" * 300, "-0.000001"]
        approach.fit(answers)
        grads, loss, _ = gradient(approach, rows_of(approach, ["9" * 50, "0"], answers), 2)
        assert loss.isfinite()
        assert grads.isfinite().all()


def test_under_bfloat16_autocast_numbers_keep_their_precision():
    approach = xval()
    batch = approach.collate(rows_of(approach))
    with torch.autocast("cpu", torch.bfloat16):
        share = approach.loss(approach.model, batch, approach.count(batch))
        answers = approach.answer(approach.model, QUESTIONS, GREEDY)
    assert share.loss.dtype == torch.float32
    assert len(answers) == len(QUESTIONS)


def test_pretrained_weights_get_a_number_head(tmp_path):
    pretrained = save_pretrained_t5(tmp_path, vocab_size=101)
    approach = build_approach(model_args(checkpoint=str(tmp_path), encoding="xval"), CE)
    assert_close(approach.model.shared.weight[:98], pretrained.shared.weight[:98])
    assert 0.5 < approach.model.number_head[0].weight.std() * 64**0.5 < 2
    approach.fit([])
    gradient(approach, rows_of(approach), 6)
