"""Readings of models that see: against brute force, single and in padded batches, and through a processor."""

import math
import re

import numpy as np
import pytest
import torch
from PIL import Image
from reading_cases import assert_quantile, fixed_width, make_model, texts_of
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from tolerances import DISTRIBUTION, approx, assert_close
from vision_cases import CONFIGS, DIGITS, END, IMAGE, PAD, PROMPT, START, TEXT, VIDEO, build, inputs_of

from ntloss.numbers import NumberFormat
from ntloss.reading import (
    Limits,
    Question,
    compare_answers,
    number_quantiles,
    read_number,
    read_numbers,
    read_scores,
)
from ntloss.reading.torch_model import TorchModel

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore::ntloss.reading.UnlikelyNumberWarning")
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
PROMPTS, SEEDS = [PROMPT, (24, 27, 28, *PROMPT[1:], 26)], [1, 2]


def next_token(kind, model, prompt, seed):
    """Log-probabilities of the next token after a prompt with an image, without padding or a cache."""
    known = {}

    @torch.no_grad()
    def log_probs(written):
        if (key := tuple(written)) not in known:
            if hasattr(model.model, "rope_deltas"):
                model.model.rope_deltas = None
            inputs = inputs_of(kind, [(*prompt, *key)], [seed])
            known[key] = model(**inputs, use_cache=False).logits[0, -1].double().log_softmax(-1).tolist()
            if hasattr(model.model, "rope_deltas"):
                model.model.rope_deltas = None
        return known[key]

    return log_probs


WORDS = [*"0123456789", " ", "?", ":", "[", "]", ",", "a", "dog", "-"]  # from 1; then the tokens of images
SPECIAL = {"<pad>": PAD, "<image>": IMAGE, "<video>": VIDEO, "<start>": START, "<end>": END}
TEMPLATE = (
    "{% for m in messages %}{{ {'user': 'user', 'assistant': 'bot', 'system': 'a'}[m.role] }}:"
    "{% for p in m.content %}{% if p.type == 'image' %}<start><image><end>{% else %}{{ p.text }}{% endif %}"
    "{% endfor %}{% if not loop.last or add_generation_prompt %}{{ '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}bot:{% endif %}"
)


def make_processor():
    """A processor of Llava, whose tokenizer has a token for each word."""
    words = {word: i + 1 for i, word in enumerate(WORDS)} | {"user": 24, "bot": 25, "\n": 26} | SPECIAL
    words |= {"(": 27, ")": 28, "<bos>": 30, "<eos>": 31}
    tokenizer = Tokenizer(models.WordLevel(words, "a"))
    pattern = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        padding_side="left",
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL)[1:]})
    size = {"height": 8, "width": 8}
    images = transformers.CLIPImageProcessorPil(size=size, crop_size=size)
    return transformers.LlavaProcessor(
        images, tokenizer, 4, "default", TEMPLATE, image_token="<image>", num_additional_image_tokens=1
    )


def picture(seed):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (8, 8, 3), dtype=np.uint8))


@pytest.fixture(params=CONFIGS)
def kind(request):
    if not hasattr(transformers, f"{request.param}ForConditionalGeneration"):
        pytest.skip("this release of transformers lacks it")
    return request.param


def assert_right(found, kind, model, prompts=PROMPTS, seeds=SEEDS):
    for values, prompt, seed in zip(found.values.tolist(), prompts, seeds, strict=True):
        numbers, _ = fixed_width(next_token(kind, model, prompt, seed), texts_of(DIGITS), NumberFormat(2))
        for value, level in zip(values, LEVELS, strict=True):
            assert_quantile(value, level, numbers, DISTRIBUTION[torch.float32])


def test_quantiles_of_a_padded_batch_with_images_are_right_and_leave_the_model_as_it_was(kind):
    model = build(kind)
    before = getattr(model.model, "rope_deltas", None)
    found = number_quantiles(model, inputs_of(kind, PROMPTS, SEEDS), DIGITS, LEVELS, NumberFormat(2))
    assert_right(found, kind, model)
    assert getattr(model.model, "rope_deltas", None) is before
    single = number_quantiles(model, inputs_of(kind, PROMPTS[:1], SEEDS[:1]), DIGITS, LEVELS, NumberFormat(2))
    assert_right(single, kind, model, PROMPTS[:1], SEEDS[:1])
    # Another image gives other numbers.
    other = number_quantiles(model, inputs_of(kind, PROMPTS, [3, 4]), DIGITS, LEVELS, NumberFormat(2))
    assert not torch.equal(found.starts, other.starts)


def test_text_after_an_image_elsewhere_is_read_without_it(kind):
    model, text = build(kind), (24, 27, 28, 26)
    inputs = {
        name: value for name, value in inputs_of(kind, [text], SEEDS[:1]).items() if value.shape == (1, 4)
    }
    form = NumberFormat(2)
    plain = number_quantiles(model, inputs, DIGITS, LEVELS, form)
    with torch.no_grad():  # which leaves the model with the offset of an image
        model(**inputs_of(kind, PROMPTS[:1], SEEDS[:1]), use_cache=True)
    again = number_quantiles(model, inputs, DIGITS, LEVELS, form)
    assert_close(again.values, plain.values)


def test_an_images_tokens_without_the_image_are_an_error(kind):
    model, inputs = build(kind), inputs_of(kind, PROMPTS[:1], SEEDS[:1])
    text = {name: value for name, value in inputs.items() if value.shape == inputs["input_ids"].shape}
    with pytest.raises(ValueError, match=str(IMAGE)):
        number_quantiles(model, text, DIGITS, LEVELS, NumberFormat(2))


def test_images_where_none_can_be_read_are_errors():
    model, processor, inputs = build("Llava"), make_processor(), inputs_of("Llava", PROMPTS, SEEDS)
    with pytest.raises(TypeError, match="sounds"):
        number_quantiles(model, {**inputs, "sounds": torch.zeros(1, 2)}, DIGITS)
    with torch.no_grad():
        past = model(**inputs, use_cache=True).past_key_values
    with pytest.raises(TypeError, match="past_key_values"):
        number_quantiles(model, inputs, DIGITS, past_key_values=past)
    with pytest.raises(TypeError, match="pixel_values"):
        number_quantiles(make_model("t5", 32), inputs, DIGITS)
    question = Question("dog?", images=[picture(1)], template=None)
    with pytest.raises(TypeError, match="processor"):
        read_number(model, processor.tokenizer, question)
    with pytest.raises(TypeError, match="images"):
        compare_answers({"a": model}, processor, [question] * 2, [1, 2])


def test_each_number_of_an_answer_is_read_with_the_image(kind):
    # With prefixes of tokens, which is what read_numbers does after the processor.
    model = build(kind)
    answer = (2, 3, 13, 5)  # `12:4`
    inputs, lengths = inputs_of(kind, [(*PROMPT, *answer)], SEEDS[:1]), [len(PROMPT), len(PROMPT) + 3]
    with torch.no_grad():
        found = [
            [root.next_tokens([(row, tokens)], torch.arange(32))[0] for tokens in ((), (2,))]
            for root in TorchModel(model).prefixes(inputs, lengths, rows=16)
            for row in range(len(root))
        ]
    for log_probs, length in zip(found, lengths, strict=True):
        for after, tokens in zip(log_probs, ((), (2,)), strict=True):
            expected = next_token(kind, model, PROMPT, SEEDS[0])((*answer[: length - len(PROMPT)], *tokens))
            assert after.exp().tolist() == approx([math.exp(value) for value in expected], scale=0.1)


def test_images_go_through_the_processors_chat_template():
    model, processor = build("Llava"), make_processor()
    parts = [{"type": "image", "image": picture(1)}, {"type": "text", "text": "dog?"}]
    turn, begun = {"role": "user", "content": parts}, "user:<start><image><end>dog?"
    asked = [
        (Question("dog?", prefill="a:", images=[picture(1)]), f"{begun}\nbot:a:", 1),
        (Question("a dog?", prefill="a:", images=picture(2)), "user:<start><image><end>a dog?\nbot:a:", 2),
        (Question(prefill="a:", messages=[turn]), f"{begun}\nbot:a:", 1),
        (Question(begun, images=picture(1), template=None), begun, 1),
    ]
    questions = [question for question, *_ in asked]
    read = read_number(model, processor, questions, format=NumberFormat(2), levels=LEVELS)
    for reading, (_, text, seed) in zip(read, asked, strict=True):
        inputs = processor(text=[text], images=[[picture(seed)]], return_tensors="pt")
        expected = number_quantiles(model, inputs, DIGITS, LEVELS, NumberFormat(2))
        assert_close(reading.details.values, expected.values)


def test_scores_and_numbers_of_answers_see_the_image():
    model, processor, limits = build("Llava"), make_processor(), Limits(max_digits=2)
    seen, other, begun = (
        Question("dog?", prefill=prefill, images=[picture(seed)])
        for prefill, seed in (("", 1), ("", 2), ("[", 1))
    )
    scores, others = (read_scores(model, processor, each, range(1, 6)) for each in (seen, other))
    assert scores.probabilities != others.probabilities
    inputs = processor(
        text=["user:<start><image><end>dog?\nbot:"], images=[[picture(1)]], return_tensors="pt"
    )
    with torch.no_grad():
        first = model(**inputs).logits[0, -1].softmax(-1)
    assert scores.probabilities[3] <= float(first[4]) <= scores.probabilities[3] * 10
    numbers = read_numbers(model, processor, seen, "[12,7]", limits=limits)
    assert [number.value for number in numbers] == [12.0, 7.0]
    prefilled = read_number(model, processor, begun, limits=limits)
    assert numbers[0].reading.starts == approx(prefilled.starts, 0.05)  # texts are sampled
    details = prefilled.details
    assert details.lower[0, 1] <= numbers[0].reading.median <= details.upper[0, 1]


def test_a_processor_without_images_reads_text():
    model, processor = build("Llava"), make_processor()
    read = read_number(model, processor, "dog?", format=NumberFormat(2))
    ids = processor.tokenizer("user:dog?\nbot:", return_tensors="pt")
    plain = number_quantiles(model, {"input_ids": ids["input_ids"]}, DIGITS, format=NumberFormat(2))
    assert_close(read.details.values, plain.values)


@pytest.mark.parametrize("window", [4, 64])
def test_numbers_of_an_answer_longer_than_a_sliding_window_are_right(window):
    text = {**TEXT, "sliding_window": window, "layer_types": ["sliding_attention", "full_attention"]}
    model = build("Gemma3", text_config=text)
    answer = (2, 3, 13, 5, 6, 13, 7)
    prompt = (24, 27, 28, 26)
    tokens = torch.tensor([[*prompt, *answer]])
    lengths = [4, 7, 10]
    with torch.no_grad():
        found = torch.cat(
            [
                root.next_tokens([(row, ()) for row in range(len(root))], torch.arange(32))
                for root in TorchModel(model).prefixes({"input_ids": tokens}, lengths, rows=16)
            ]
        )
        expected = [
            model(input_ids=tokens[:, :n], use_cache=False).logits[0, -1].log_softmax(-1) for n in lengths
        ]
    assert_close(found.exp(), torch.stack(expected).double().exp(), DISTRIBUTION[torch.float32])
