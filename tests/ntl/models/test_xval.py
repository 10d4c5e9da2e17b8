import torch
import torch.nn.functional as F
from model_cases import (
    ANSWERS,
    GREEDY,
    QUESTIONS,
    gradient,
    loss_of,
    make,
    overfit,
    rows_of,
)
from tolerances import assert_close

from ntl.models import IGNORE


def xval(**settings):
    built = make(encoding="xval", **settings)
    built.fit(ANSWERS)
    return built


def test_the_loss_is_the_mean_of_cross_entropy_and_standardized_squared_error():
    built = xval(log_scale=False)
    batch = built.collate(rows_of(built))
    values = torch.tensor([float(a) for a in ANSWERS])
    loss = loss_of(built, rows_of(built))
    output = built.model(
        **{k: batch[k] for k in ("input_ids", "attention_mask", "numbers")},
        decoder_input_ids=torch.tensor([[0, built.encoding.number_id]] * len(ANSWERS)),
        decoder_numbers=torch.stack([torch.zeros(6), values], 1).double(),
    )
    ce = F.cross_entropy(output.logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORE)
    target = (values - values.mean()) / values.std(correction=0)
    number = F.mse_loss(output.numbers[:, 0], target)
    assert_close(loss, (ce + number) / 2)


def test_generation_feeds_predicted_numbers_back():
    built = overfit(xval(), steps=30)
    question = "1 + 1"
    text = built.answer([question], *GREEDY)[0]
    # Teacher-forced with its own answer, the model predicts the same answer.
    batch = built.collate(rows_of(built, [question], [text]))
    built.model.eval()
    output = built.model(
        **{k: batch[k] for k in ("input_ids", "attention_mask", "numbers")},
        decoder_input_ids=built.model.prepare_decoder_input_ids_from_labels(batch["labels"]),
        decoder_numbers=F.pad(batch["label_numbers"][:, :-1], (1, 0)),
    )
    assert output.logits.argmax(-1).tolist() == batch["labels"].tolist()


def test_numbers_of_any_size_give_a_finite_loss_and_gradient():
    for log_scale in (True, False):
        built = make(encoding="xval", log_scale=log_scale)
        answers = ["1" + "0" * 300, "-0.000001"]
        built.fit(answers)
        grads, loss = gradient(built, rows_of(built, ["9" * 50, "0"], answers))
        assert loss.isfinite()
        assert grads.isfinite().all()


def test_under_bfloat16_autocast_numbers_keep_their_precision():
    built = xval()
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(built, rows_of(built))
        answers = built.answer(QUESTIONS, *GREEDY)
    assert loss.dtype == torch.float32
    assert len(answers) == len(QUESTIONS)
