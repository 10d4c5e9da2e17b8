"""One number, read in one call, from models and tokenizers of every kind."""

import pytest
import tiny_tokenizers as tiny
import torch
from decoding_cases import make_model
from tolerances import DISTRIBUTION, approx, assert_close

from ntloss import NumberVocabulary
from ntloss.decoding import NumberReading, number_quantiles, read_number
from ntloss.numbers import NumberFormat

pytestmark = pytest.mark.filterwarnings("ignore::ntloss.decoding.UnlikelyNumberWarning")
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | trim }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def prompts_of(monkeypatch, kind, tokenizer, *texts):
    """What the encoder, or a causal model, and then a decoder reads before the number."""
    seen = {}

    def note(model, inputs, *args, prefix_ids=(), **options):
        seen.update(inputs=inputs["input_ids"][0].tolist(), prefix=list(prefix_ids))
        return number_quantiles(model, inputs, *args, prefix_ids=prefix_ids, **options)

    monkeypatch.setattr("ntloss.decoding.reading.number_quantiles", note)
    read_number(make_model(kind, len(tokenizer)), tokenizer, *texts)
    return tuple("|".join(tokenizer.convert_ids_to_tokens(ids)) for ids in (seen["inputs"], seen["prefix"]))


@pytest.mark.parametrize(
    ("kind", "make", "texts", "read"),
    [
        # the space is a token of its own, joined with the digit, or part of a number of several digits
        ("llama", tiny.llama_like, ("a-a", "a "), ("▁a|-|a|<0x0A>|a|▁", "")),
        ("llama", tiny.byte_level, ("a", "a "), ("a|Ċ|a", "")),
        ("llama", tiny.llama_3_like, ("a", "a "), ("a|Ċ|a|Ġ", "")),
        # no line break behind white space, and nothing to begin with
        ("llama", tiny.llama_3_like, ("a\n", "$"), ("a|Ċ|$", "")),
        ("llama", tiny.byte_level, ("a ", ""), ("a", "")),
        ("t5", tiny.sentence_piece, ("a", "the "), ("▁a", "▁the")),
    ],
)
def test_the_prompt_ends_before_the_first_token_that_a_digit_would_change(
    monkeypatch, kind, make, texts, read
):
    assert prompts_of(monkeypatch, kind, make(), *texts) == read


@pytest.mark.parametrize(
    ("prefill", "read"),
    [("a ", "<user>q</><assistant>a "), ("a$", "<user>q</><assistant>a$"), ("", "<user>q</><assistant>")],
)
def test_a_chat_template_leaves_the_assistants_turn_open_and_keeps_the_space(monkeypatch, prefill, read):
    tokenizer = tiny.qwen_like()
    tokenizer.chat_template = TEMPLATE
    seen, _ = prompts_of(monkeypatch, "llama", tokenizer, "q", prefill)
    assert seen.replace("|", "").replace("Ġ", " ") == read


@pytest.mark.parametrize(
    "answer", ["{{ raise_exception('only users speak') if m['role'] == 'assistant' }}", "<{{ m['role'] }}>"]
)
def test_a_chat_template_without_an_assistants_turn_is_an_error(answer):
    tokenizer = tiny.qwen_like()
    tokenizer.chat_template = f"{{% for m in messages %}}{answer}{{% endfor %}}"
    with pytest.raises(ValueError, match=r"no assistant turn that can be continued .* Omit prefill"):
        read_number(make_model("llama", len(tokenizer)), tokenizer, "q", "It takes ")


def test_a_reading_is_that_of_number_quantiles():
    tokenizer = tiny.qwen_like()
    model = make_model("llama", len(tokenizer) + 8)  # padded
    reading = read_number(model, tokenizer, "a ", level=0.5)
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, vocab_size=len(tokenizer) + 8)
    inputs = tokenizer("a ", return_tensors="pt")
    read = number_quantiles(model, inputs, vocabulary, (0.25, 0.5, 0.75))
    found = torch.tensor([reading.interval[0], reading.median, reading.interval[1]], dtype=torch.float64)
    assert_close(found, read.values[0], DISTRIBUTION)
    assert reading.starts == approx(read.starts.item())


def test_a_level_and_a_tokenizer_stand_for_one_quantile_and_all_its_numbers():
    tokenizer = tiny.byte_level()
    model, width = make_model("llama", len(tokenizer)), NumberFormat(digits=2)
    inputs = tokenizer("a", return_tensors="pt")
    numbers = NumberVocabulary.from_tokenizer(tokenizer, "numbers")
    several = number_quantiles(model, inputs, numbers, [0.5], width)
    assert_close(number_quantiles(model, inputs, tokenizer, 0.5, width).values, several.values, DISTRIBUTION)


def test_a_reading_prints_as_its_median_and_its_interval():
    assert str(NumberReading(11.0, (2.0, 40.5), 0.9, 1.0)) == "11 [2, 40.5]"
    assert str(NumberReading(1234567.0, (-0.25, 3e9), 0.9, 1.0)) == "1234567 [-0.25, 3000000000]"
    assert str(NumberReading(float("nan"), (float("nan"),) * 2, 0.9, 0.0)) == "no number"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "smollm2"}, "model: expected a language model of transformers, given str"),
        ({"tokenizer": None}, "tokenizer: expected the model's tokenizer .* given NoneType"),
        ({"prompt": ["a", "b"]}, "prompt: expected one text, given list"),
        ({"prefill": None}, "prefill: expected one text, given NoneType"),
        ({"prompt": ""}, "prompt: expected a question"),
        ({"level": 90}, "level=90: expected a share above 0 and below 1"),
        ({"level": "90%"}, "level='90%': expected a share above 0 and below 1"),
        ({"level": 1 - 1e-13}, "level=0.99.*: expected a share above 0 and below 1"),
        ({"prefill": "It takes 1 "}, "prefill='It takes 1 ': expected the text before the number"),
    ],
)
def test_what_cannot_be_read_is_an_error(changed, message):
    tokenizer = tiny.qwen_like()
    given = {"model": make_model("llama", len(tokenizer)), "tokenizer": tokenizer, "prompt": "a", **changed}
    with pytest.raises((TypeError, ValueError), match=message):
        read_number(**given)


@pytest.mark.parametrize("make", [tiny.byte_level, tiny.sentence_piece, tiny.word_piece])
def test_every_token_has_a_text_for_messages(make):
    tokenizer = make()
    numbers = NumberVocabulary.from_tokenizer(tokenizer, "numbers", vocab_size=2 * len(tokenizer))
    (digit,) = [token for token in numbers.tokens if token.text.strip() == "4"][:1]
    assert numbers.text_of(digit.token_id).strip() == "4"
    assert numbers.text_of(2 * len(tokenizer) - 1) is None
