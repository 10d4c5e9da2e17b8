"""Which numbers of a text belong to which field, and columns of a dataset by field."""

import pytest
from tiny_tokenizers import qwen_like

from ntloss.numbers import by_field, find_fields


def found(text, fields, **options):
    return [(each.field, text[each.start : each.end]) for each in find_fields(text, fields, **options)]


@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        ('{"room_size": 0.35, "threshold_db": -18.5}', ["room_size", "threshold_db"],
         [("room_size", "0.35"), ("threshold_db", "-18.5")]),
        ("<qed>0.123|<logp>-1.2", ["<qed>", "<logp>"], [("<qed>", "0.123"), ("<logp>", "-1.2")]),
        ("<qed>0.123|<logp>-1.2", ["qed", "logp"], [("qed", "0.123"), ("logp", "-1.2")]),
        ("qed=0.5 weight = 300", ["weight", "qed"], [("qed", "0.5"), ("weight", "300")]),
        ("**Clarity:** 4/5\n- Depth: 3", ["Clarity", "Depth"], [("Clarity", "4"), ("Depth", "3")]),
        ("Score:\n4", ["Score"], [("Score", "4")]),
        ('{"scores": [4, 5, 3], "n": 2}', ["scores"], [("scores", "4"), ("scores", "5"), ("scores", "3")]),
        ('{"boxes": [[12, 34], [5, 6]], "n": 2}', ["boxes"],
         [("boxes", "12"), ("boxes", "34"), ("boxes", "5"), ("boxes", "6")]),
        ('{"scores": [4, null, 3]}', ["scores"], [("scores", "4"), ("scores", "3")]),
        ('{"scores": [null, 3, null, 4]}', ["scores"], [("scores", "3"), ("scores", "4")]),
        ('["scores"]: [4, 5], [6]', ["scores"], [("scores", "4"), ("scores", "5")]),
        ("| price | size |\n|---|---|\n| 12.50 | 3 |", ["price", "size"], []),  # the names of columns
        ("price | size\r\n--|--\r\n12.50 | 3", ["price", "size"], []),
        ("price\tsize\n12.50\t3", ["price", "size"], []),
        ('{\n\t"price":\n\t\t12.50\n}', ["price"], [("price", "12.50")]),
        ("| price | 12.50 |\n| size | 3 |", ["price", "size"], [("price", "12.50"), ("size", "3")]),
        ("scores (4, 5), then 6", ["scores"], [("scores", "4"), ("scores", "5")]),
        ("Clarity: 4, 12 apples", ["Clarity"], [("Clarity", "4")]),
        ("I like its clarity. 3 of 4 readers, clarity, 2", ["clarity"], []),
        ("Clarity is 4", ["Clarity"], []),
        ('{"size": 3, "room_size": 0.5}', ["size"], [("size", "3")]),
        ('{"room size": 1, "size": 2}', ["size", "room size"], [("room size", "1"), ("size", "2")]),
        ("Question 1: 4. Question 2: 5.", ["Question 1", "Question 2"],
         [("Question 1", "4"), ("Question 2", "5")]),
        ('"weight (kg)": 80, size [m]: 2', ["weight", "size"], [("weight", "80"), ("size", "2")]),
        ("**Clarity** (1-5): **4**", ["Clarity"], [("Clarity", "4")]),
        ("Clarity (4): 2 typos", ["Clarity"], [("Clarity", "4")]),  # a value, not a scale
        ("Clarity (4/5): 2 typos", ["Clarity"], [("Clarity", "4")]),
        ("Scores [4, 5]: fine", ["Scores"], [("Scores", "4"), ("Scores", "5")]),
        ("温度\uff1a12.5、【湿度】80", ["温度", "湿度"], [("温度", "12.5"), ("湿度", "80")]),
        ("a: 1, a: 2", ["a"], [("a", "1"), ("a", "2")]),
        ("no number here, clarity:", ["clarity"], []),
        ("size;price\n4;5", ["size", "price"], []),
        ("size, price:\n4, 5", ["size", "price"], []),
        ("size: 4, price:\n5", ["size", "price"], [("size", "4"), ("price", "5")]),
        ("", ["clarity"], []),
    ],
)  # fmt: skip
def test_a_number_belongs_to_the_name_that_stands_before_it(text, fields, expected):
    assert found(text, fields) == expected


def test_numbers_belong_to_fields_by_their_order():
    assert found("0.5, 12 and 7", ["a", "b"], by="order") == [("a", "0.5"), ("b", "12")]
    assert found("0.5", ["a", "b"], by="order") == [("a", "0.5")]


def test_a_function_may_say_which_numbers_are_whose():
    assert found("x 1 y 2", ["b", "a"], by=lambda text: [("a", 6, 7), ("b", 2, 3)]) == [
        ("b", "1"),
        ("a", "2"),
    ]
    with pytest.raises(ValueError, match="c"):
        find_fields("x 1", ["a"], by=lambda text: [("c", 2, 3)])


@pytest.mark.parametrize("fields", [[], "clarity", [""], [3]])
def test_fields_are_names(fields):
    with pytest.raises(ValueError, match="fields"):
        find_fields("1", fields)


def test_by_is_a_known_way():
    with pytest.raises(ValueError, match="by="):
        find_fields("1", ["a"], by="key")


def test_columns_hold_the_value_of_a_field_at_the_tokens_of_its_numbers():
    text = "a: 12.5 b: 3"
    offsets = [(0, 2), (2, 5), (5, 7), (7, 8), (8, 12), (0, 0)]  # the last is a special token
    assert by_field(text, offsets, {"a": 2.0, "b": 0.5}, -1.0) == [-1.0, 2.0, 2.0, -1.0, 0.5, -1.0]


def test_scores_of_a_chat_count_and_digits_of_its_feedback_do_not():
    tokenizer = qwen_like()
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}>\n{{ m.content }}</s>\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>\n{% endif %}"
    )
    messages = [
        {"role": "user", "content": "Rate it as Clarity: 1 to 5."},
        {"role": "assistant", "content": "Clarity: 4\nIt has 23 errors."},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    answer = tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    assert text.startswith(answer)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    weights = by_field(text, encoded["offset_mapping"], {"Clarity": 1.0}, start=len(answer))
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    kept = [token for token, weight in zip(tokens, weights, strict=True) if weight]
    assert kept == ["4"]
