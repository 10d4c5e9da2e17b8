"""Numbers read in one call, from models and tokenizers of every kind."""

import math

import pytest
import tiny_tokenizers as tiny
import torch
from reading_cases import any_length, make_model, next_token, tokenizer_of
from tolerances import DISTRIBUTION, approx, assert_close

import ntloss.reading.quantiles as quantiles
from ntloss import NumberVocabulary
from ntloss.numbers import NumberFormat
from ntloss.reading import (
    Limits,
    Question,
    number_quantiles,
    read_number,
    read_numbers,
    read_scores,
)
from ntloss.reading.torch_model import TorchModel

pytestmark = pytest.mark.filterwarnings("ignore::ntloss.reading.UnlikelyNumberWarning")
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{% for call in m.tool_calls %}{{ call.function.name }}"
    "{% else %}{{ m['content'] | trim }}{% endfor %}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{% if think %}<think>{% endif %}"
)


@pytest.fixture
def seen(monkeypatch):
    """What the encoder, or a causal model, and then a decoder reads before the numbers of each call."""
    calls = []
    continuations = TorchModel.continuations

    def note(self, inputs, texts, prefix_ids=()):
        masks = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
        rows = [row[mask].tolist() for row, mask in zip(inputs["input_ids"], masks, strict=True)]
        calls.append((rows, list(prefix_ids)))
        return continuations(self, inputs, texts, prefix_ids)

    monkeypatch.setattr(TorchModel, "continuations", note)
    return calls


def tokens_of(tokenizer, ids):
    return "|".join(tokenizer.convert_ids_to_tokens(ids))


@pytest.mark.parametrize(
    ("kind", "make", "texts", "read"),
    [
        # the space is a token of its own, joined with the digit, or joined with a sign alone
        ("llama", tiny.llama_like, ("a-a", "a "), ("▁a|-|a|<0x0A>|a|▁", "")),
        ("llama", tiny.byte_level, ("a", "a "), ("a|Ċ|a", "")),
        ("llama", tiny.llama_3_like, ("a", "a "), ("a|Ċ|a|Ġ", "")),
        # no line break behind white space, and nothing to begin with
        ("llama", tiny.llama_3_like, ("a\n", "$"), ("a|Ċ|$", "")),
        ("llama", tiny.byte_level, ("a ", ""), ("a", "")),
        ("t5", tiny.sentence_piece, ("a", "the "), ("▁a", "▁the")),
    ],
)
def test_the_prompt_ends_before_the_first_token_that_a_number_would_change(seen, kind, make, texts, read):
    tokenizer = make()
    read_number(make_model(kind, len(tokenizer)), tokenizer, Question(*texts), limits=Limits(max_digits=2))
    ((rows, prefix),) = seen
    assert (tokens_of(tokenizer, rows[0]), tokens_of(tokenizer, prefix)) == read


@pytest.mark.parametrize(
    ("format", "kept"), [(None, "a"), (NumberFormat(2, signed=True), "a"), (NumberFormat(2), "a| ")]
)
def test_a_space_stays_only_if_no_number_of_the_format_is_joined_with_it(seen, format, kept):
    words = ["a", *"0123456789", " -", " $", " .", " +", "-", "$", ".", "+", " "]
    tokenizer = tokenizer_of(words, r" ?[-$.+]|[0-9]| |a")
    model = make_model("llama", len(words) + 2)
    read_number(model, tokenizer, "a ", format=format, limits=Limits(max_digits=2))
    assert tokens_of(tokenizer, seen[0][0][0]) == kept


def chat_tokenizer():
    tokenizer = tiny.qwen_like()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"prompt": "q", "prefill": "a "}, "<user>q</><assistant>a"),
        ({"prompt": "q", "prefill": "a$"}, "<user>q</><assistant>a$"),
        ({"prompt": "q"}, "<user>q</><assistant>"),
        ({"prompt": "q", "system": "s"}, "<system>s</><user>q</><assistant>"),
        ({"messages": [{"role": "user", "content": "q"}]}, "<user>q</><assistant>"),
        (
            {
                "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
                "prefill": "b$",
            },
            "<user>q</><assistant>ab$",
        ),
        ({"prompt": "q", "template_options": {"think": True}}, "<user>q</><assistant><think>"),
        # Contents in parts, as OpenAI's API takes them, and none of a turn that calls a tool.
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "text", "text": "q"}, {"type": "text", "text": "r"}],
                    },
                    {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
                ]
            },
            "<user>qĊr</><assistant>a",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": "q"},
                    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "count"}}]},
                    {"role": "tool", "content": "r"},
                ]
            },
            "<user>q</><assistant>count</><tool>r</><assistant>",
        ),
    ],
)
def test_a_chat_template_leaves_the_assistants_turn_open(seen, given, read):
    tokenizer = chat_tokenizer()
    model, limits = make_model("llama", len(tokenizer)), Limits(max_digits=2)
    read_number(model, tokenizer, Question(**given), limits=limits)
    found = tokens_of(tokenizer, seen[0][0][0]).replace("|", "").replace("Ġ", " ")
    assert found.rstrip() == read


@pytest.mark.parametrize(
    "answer", ["{{ raise_exception('only users speak') if m['role'] == 'assistant' }}", "<{{ m['role'] }}>"]
)
def test_a_chat_template_without_an_assistants_turn_is_an_error(answer):
    tokenizer = tiny.qwen_like()
    tokenizer.chat_template = f"{{% for m in messages %}}{answer}{{% endfor %}}"
    with pytest.raises(ValueError, match="prefill="):
        read_number(make_model("llama", len(tokenizer)), tokenizer, Question("q", prefill="It takes "))


def test_a_reading_is_a_row_of_number_quantiles():
    tokenizer = tiny.qwen_like()
    model = make_model("llama", len(tokenizer) + 8).double()  # padded
    prompts = ["a", "a-a"]
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, vocab_size=len(tokenizer) + 8)
    for format in (None, NumberFormat(2)):
        options = {"limits": Limits(max_digits=1, most_texts=1000)}
        sampled = 0.01 if format is None else DISTRIBUTION
        several = read_number(model, tokenizer, prompts, levels=(0.25, 0.75), format=format, **options)
        for prompt, reading in zip(prompts, several, strict=True):
            inputs = tokenizer(prompt, return_tensors="pt")
            read = number_quantiles(model, inputs, vocabulary, (0.25, 0.5, 0.75), format, **options)
            found = torch.tensor([reading.low, reading.median, reading.high], dtype=torch.float64)
            assert_close(found, read.values[0], DISTRIBUTION)
            for name in ("starts", "ends", "continues"):
                assert getattr(reading, name) == approx(getattr(read, name).item(), sampled, scale=1.0)
            assert_close(reading.details.values, read.values, DISTRIBUTION)
            assert reading.details.levels == (0.25, 0.5, 0.75)
            numbers = reading.distribution
            assert sum(numbers.values()) == approx(1.0 if format is None else 0.0)
            assert (numbers == {}) == (format is not None)
            assert [*numbers] == sorted(numbers)


def test_the_vocabulary_of_a_tokenizer_is_made_once_until_it_grows(monkeypatch):
    tokenizer, made = tiny.qwen_like(), []
    make = NumberVocabulary.from_tokenizer
    monkeypatch.setattr(
        quantiles.NumberVocabulary,
        "from_tokenizer",
        lambda *given, **options: made.append(given) or make(*given, **options),
    )
    model = make_model("llama", len(tokenizer) + 8)
    for _ in range(2):
        read_number(model, tokenizer, "a", limits=Limits(max_digits=2))
    assert len(made) == 1
    tokenizer.add_tokens(["much"])
    read_number(model, tokenizer, "a", limits=Limits(max_digits=2))
    assert len(made) == 2


def test_tokens_that_the_model_does_not_have_are_not_read():
    tokenizer = tiny.gemma_like()
    model = make_model("llama", len(tokenizer))
    before = read_scores(model, tokenizer, "a")
    # As some have tokens of images, which a head without images has not.
    tokenizer.add_tokens(["88", "8888", "\u2212", "+", "€€"])
    assert str(read_scores(model, tokenizer, "a")) == str(before)
    assert 0 < read_number(model, tokenizer, "a", limits=Limits(max_digits=2)).starts < 1


@pytest.mark.parametrize(
    ("changed", "error", "named"),
    [
        ({"model": "smollm2"}, TypeError, "model"),
        ({"tokenizer": None}, TypeError, "tokenizer"),
        ({"question": [3]}, TypeError, "prompt"),
        ({"question": [["a"]]}, TypeError, "prompt"),
        ({"question": None}, TypeError, "question"),
        ({"question": []}, ValueError, "question"),
        ({"question": {"role": "user", "content": "a"}}, TypeError, "prompt"),
        ({"format": 2}, TypeError, "format"),
        ({"levels": 90}, ValueError, "levels"),
        ({"levels": (0.5, 1.0)}, ValueError, "levels"),
        ({"levels": ()}, ValueError, "levels"),
        ({"question": Question("a", prefill="It takes 1 ")}, ValueError, "prefill"),
        ({"question": Question("a", system="s")}, ValueError, "system"),
        # no tokens before the number
        ({"tokenizer": tiny.byte_level(), "question": [" ", "the a"]}, ValueError, "prompt: "),
    ],
)
def test_what_cannot_be_read_is_an_error(changed, error, named):
    tokenizer = tiny.qwen_like()
    given = {"model": make_model("llama", len(tokenizer)), "tokenizer": tokenizer, "question": "a"}
    with pytest.raises(error, match=named):
        read_number(**given | changed)


TURN = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("given", "error", "named"),
    [
        *(({name: most}, ValueError, name) for name, most in (("max_digits", 301), ("most_texts", 0))),
        ({}, TypeError, "prompt or messages"),
        ({"prompt": "a", "messages": [TURN]}, TypeError, "messages"),
        ({"prompt": ""}, ValueError, "prompt"),
        ({"prompt": "a", "prefill": None}, TypeError, "prefill"),
        ({"messages": TURN}, TypeError, "messages"),
        ({"messages": [[TURN]]}, TypeError, "messages"),
        ({"messages": [{"from": "human", "value": "a"}]}, TypeError, "messages"),
        ({"messages": [{"role": "system", "content": "s"}, TURN], "system": "t"}, ValueError, "system"),
    ],
)
def test_a_question_is_a_text_or_a_conversation_and_limits_are_in_their_range(given, error, named):
    with pytest.raises(error, match=named):
        Limits(**given) if named in vars(Limits()) else Question(**given)


@pytest.mark.parametrize(
    "prefill",
    [
        *["Pi is 3.", "It is 1/", "It is 3,", "At 12:", "It is 10^", "It is 1e", "It is 3\u2013"],
        *["The answer is -", "It costs -$", "\u221a", "It is \uff15", "It is 5 \u00b1 ", "."],
    ],
)
def test_a_prefill_that_ends_in_a_part_of_the_number_is_an_error(prefill):
    tokenizer = chat_tokenizer()
    model = make_model("llama", len(tokenizer))
    with pytest.raises(ValueError, match="prefill"):
        read_number(model, tokenizer, Question("a", prefill=prefill))
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": prefill}]
    with pytest.raises(ValueError, match="prefill"):
        read_number(model, tokenizer, Question(messages=turns))


@pytest.mark.parametrize(
    "prefill",
    [
        *["", " ", "It costs $", "12 + 13 = ", "In 2019. ", "Step 1: ", "x=", "3 - ", "GPT-", "In 2019 I"],
        *["(", "[12, ", "[12,", "(12,", "{"],
    ],
)
def test_a_prefill_may_end_in_marks_that_belong_to_no_number(prefill):
    tokenizer = chat_tokenizer()
    model = make_model("llama", len(tokenizer))
    read_number(
        model, tokenizer, Question("In 2019.", prefill=prefill), limits=Limits(max_digits=1, most_texts=2)
    )


CHARACTERS = '0271-: {}"ab'


def by_characters():
    return tokenizer_of(CHARACTERS)


@pytest.mark.parametrize("kind", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_the_numbers_of_an_answer_are_those_that_the_model_would_write_there(kind):
    tokenizer = by_characters()
    model = make_model(kind, 2 + len(CHARACTERS)).double()
    answer = '{"a":7 "b":-2}'
    calls = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(
            (*kwargs["input_ids"].shape, kwargs.get(TorchModel(model).cache_name))
        ),
        with_kwargs=True,
    )
    found = read_numbers(model, tokenizer, "ab ", answer, limits=Limits(max_digits=1, most_texts=10**4))
    assert [(each.text, each.value, each.start) for each in found] == [
        ("7", 7.0, answer.index("7")),
        ("-2", -2.0, answer.index("-")),
    ]
    # Prompt and answer are run once, and all texts that may stand in the answer share their cache.
    assert calls[0] == (1, 3 + len(answer), None)
    assert all(rows == 1 and cache is not None for rows, _, cache in calls[1:])
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, vocab_size=2 + len(CHARACTERS))
    for each in found:
        before = tokenizer.encode("ab " + answer[: each.start])
        numbers, starts, _ = any_length(next_token(model, torch.tensor(before)), vocabulary, 1)
        total = sum(numbers.values())
        assert each.probability == approx(numbers[each.value] / total, 1e-3, scale=1.0)
        assert each.reading.starts == approx(starts, 1e-3)
        below = sum(p for x, p in numbers.items() if x < each.reading.median) / total
        assert below <= 0.5 <= below + numbers[each.reading.median] / total


def test_a_written_number_is_followed_however_unlikely_it_is():
    tokenizer = by_characters()
    model = make_model("llama", 2 + len(CHARACTERS)).double()
    (found,) = read_numbers(model, tokenizer, "ab ", ":72", limits=Limits(max_digits=2, most_texts=3))
    behind = next_token(model, torch.tensor(tokenizer.encode("ab :")))
    seven, two = tokenizer.encode("72")
    ends = [i for i in range(14) if i < 2 or CHARACTERS[i - 2] in '"a']  # not a `bn`
    written = behind([])[seven] + behind([seven])[two]
    ended = sum(math.exp(behind([seven, two])[i]) for i in ends)
    assert 0 < math.exp(written) * ended < 0.01
    read = found.reading
    assert found.probability * read.starts * read.ends >= math.exp(written) * ended * (1 - 1e-6)


@pytest.mark.parametrize(
    ("answer", "value", "before"),
    [
        ("$2", 2, ""),
        ("-$2", -2, ""),
        ("US$2", 2, "US"),
        ("-US$2", -2, "-US"),
        ("EUR 2", 2, "EUR"),
        ("\\$2", 2, ""),
        ("($2)", 2, "("),
        ("(12)", 12, "("),
    ],
)
@pytest.mark.parametrize("joined", [False, True])
def test_each_number_of_an_answer_is_read_where_it_can_be_written(answer, value, before, joined):
    """Also where a token holds the bracket and the currency; the reading has the sign of the number."""
    words = [*"0123456789", *"a-$,() \\USER", "($"]
    tokenizer = tokenizer_of(words, r"\(\$|." if joined else ".")
    model = make_model("llama", len(words) + 2).double()
    (found,) = read_numbers(model, tokenizer, "aa\n", answer, limits=Limits(max_digits=2, most_texts=500))
    assert found.value == value
    assert found.text in answer
    place = "($" if joined and "($" in answer else before
    prompt = tokenizer("aa\n" + place, return_tensors="pt")
    read = number_quantiles(model, prompt, tokenizer, limits=Limits(max_digits=2, most_texts=500))
    assert found.reading.starts == approx(read.starts.item(), 1e-2)
    assert found.probability > 0


def test_an_answer_without_numbers_has_none_and_other_models_are_errors():
    tokenizer = by_characters()
    assert read_numbers(make_model("llama", 14), tokenizer, "ab", "a b") == []
    with pytest.raises(TypeError, match="expected a causal model"):
        read_numbers(make_model("t5", 14), tokenizer, "ab", "7")
    with pytest.raises(TypeError, match="answer"):
        read_numbers(make_model("llama", 14), tokenizer, "ab", 7)
    # A recurrent model is run from number to number.
    model = make_model("mamba", 14)
    numbers = read_numbers(model, tokenizer, "ab", "7 b 12", limits=Limits(max_digits=1))
    assert [number.value for number in numbers] == [7.0, 12.0]


def test_questions_that_begin_their_answers_in_other_ways_are_read_together():
    for kind, make in (("t5", tiny.sentence_piece), ("llama", tiny.byte_level)):
        tokenizer = make()
        model, limits = make_model(kind, len(tokenizer)).double(), Limits(max_digits=1)
        questions = [Question("a", prefill="the "), "a a", Question("a", prefill="a ")]
        together = read_number(model, tokenizer, questions, limits=limits)
        alone = [read_number(model, tokenizer, question, limits=limits) for question in questions]
        assert [reading.starts for reading in together] == approx([reading.starts for reading in alone])
