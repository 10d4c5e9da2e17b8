from approach_cases import ANSWERS, QUESTIONS, make

from ntl.data import Example
from ntl.encodings.digits import character_tokenizer
from ntl.training.token_cache import tokenize

CHAT = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[bot]"


def test_plain_and_padded_labels_are_cached_separately(tmp_path):
    examples = [Example(question, answer) for question, answer in zip(QUESTIONS, ANSWERS, strict=True)]
    lengths = []
    for number_format in ("plain", "padded"):
        approach = make(number_format=number_format)
        approach.fit(ANSWERS)
        rows = tokenize(examples, approach, tmp_path)
        lengths.append({len(row["labels"]) for row in rows})
    assert lengths == [{2, 3, 4, 5}, {8}]


def test_prompts_of_different_kinds_are_cached_separately(tmp_path):
    tokenizer = character_tokenizer()
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(tmp_path)
    kinds = ({}, {"separator": " is "}, {"chat_template": True, "separator": " is "})
    lengths = []
    for kind in kinds:
        settings = {"family": "decoder_only", "tokenizer": str(tmp_path), **kind}
        approach = make("llama-tiny", **settings)
        rows = tokenize([Example("a", "1")], approach, tmp_path / "cache")
        lengths.append(len(rows[0]["input_ids"]))
    assert lengths == [len("a|1|"), len("a is 1|"), len("[user]a[bot] is 1|")]


def test_other_chat_templates_are_not_served_from_the_cache(tmp_path):
    tokenizer = character_tokenizer()
    lengths = []
    for template in (CHAT, f"Be brief. {CHAT}"):
        tokenizer.chat_template = template
        tokenizer.save_pretrained(tmp_path)
        approach = make("llama-tiny", family="decoder_only", tokenizer=str(tmp_path), chat_template=True)
        lengths.append(len(tokenize([Example("a", "1")], approach, tmp_path / "cache")[0]["input_ids"]))
    assert lengths[1] == lengths[0] + len("Be brief. ")
