"""Which numbers of a text belong to which field, and columns of a dataset by field."""

import pytest

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
        ("<price>\n  12.50\n</price>", ["price"], [("price", "12.50")]),
        ("### Clarity\n4", ["Clarity"], [("Clarity", "4")]),
        ("", ["clarity"], []),
    ],
)  # fmt: skip
def test_a_number_belongs_to_the_name_that_stands_before_it(text, fields, expected):
    assert found(text, fields) == expected


def test_numbers_belong_to_fields_by_their_order_or_by_a_function():
    assert found("0.5, 12 and 7", ["a", "b"], by="order") == [("a", "0.5"), ("b", "12")]
    assert found("0.5", ["a", "b"], by="order") == [("a", "0.5")]
    assert found("x 1 y 2", ["b", "a"], by=lambda _: [("a", 6, 7), ("b", 2, 3)]) == [("b", "1"), ("a", "2")]


@pytest.mark.parametrize(
    ("fields", "by", "named"),
    [
        *[(fields, "name", "fields") for fields in ([], "clarity", [""], [3])],
        (["a"], "key", "by="),
        (["a"], lambda text: [("c", 2, 3)], "c"),
    ],
)
def test_fields_are_names_and_by_is_a_known_way(fields, by, named):
    with pytest.raises(ValueError, match=named):
        find_fields("x 1", fields, by)


def test_columns_hold_the_value_of_a_field_at_the_tokens_of_its_numbers():
    text = "a: 12.5 b: 3"
    offsets = [(0, 2), (2, 5), (5, 7), (7, 8), (8, 12), (0, 0)]  # the last is a special token
    assert by_field(text, offsets, {"a": 2.0, "b": 0.5}, -1.0) == [-1.0, 2.0, 2.0, -1.0, 0.5, -1.0]
    # Of a chat, the answer alone is looked at.
    text, answer = "user: Clarity: 1 to 5. bot: Clarity: 4, with 23 errors.", "Clarity: 4, with 23 errors."
    tokens = [*range(0, len(text), 2)]
    weights = by_field(text, [(i, i + 2) for i in tokens], {"Clarity": 1.0}, start=text.index(answer))
    assert [text[i : i + 2] for i, weight in zip(tokens, weights, strict=True) if weight] == [" 4"]
