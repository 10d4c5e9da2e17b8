"""Tiny random models, and brute-force distributions over the numbers that they write."""

import functools
import itertools
import math
import re

import torch

from ntloss.numbers.grammar import NumberReader
from ntloss.reading import from_function

END, PAD = 1, 0
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": PAD}
LLAMA = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
KINDS: dict[str, tuple[str, dict[str, int]]] = {
    "t5": ("T5ForConditionalGeneration", T5),
    "llama": ("LlamaForCausalLM", LLAMA),
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}),
    "mamba": ("MambaForCausalLM", {"hidden_size": 16, "state_size": 4, "num_hidden_layers": 2}),
}


def make_model(kind, vocab_size, seed=0, scale=3.0):
    """A random model of a kind, or of a class and its configuration, with logits of about `scale`."""
    import transformers

    torch.manual_seed(seed)
    tokens = {"vocab_size": vocab_size, "pad_token_id": PAD, "eos_token_id": END, "bos_token_id": None}
    name, sizes = KINDS[kind] if isinstance(kind, str) else kind
    model_class = getattr(transformers, name)
    model = model_class(model_class.config_class(**{**tokens, **sizes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.5)
        if scale is not None:
            logits = _logits(model, torch.arange(2, vocab_size), [()])
            head = model.get_output_embeddings()
            # An own head, so that the scale of the logits is not that of the embeddings.
            head.weight = torch.nn.Parameter(head.weight * (scale / logits.std()))
    return model


@torch.no_grad()
def _logits(model, question, rows):
    """`[rows, vocab]`, without padding and without a cache; all rows are of one length."""
    tokens, questions = torch.tensor(rows, dtype=torch.int64), question.expand(len(rows), -1)
    if model.config.is_encoder_decoder:
        start = torch.full((len(rows), 1), model.config.decoder_start_token_id)
        tokens = torch.cat([start, tokens], dim=-1)
        output = model(input_ids=questions, decoder_input_ids=tokens, use_cache=False)
    else:
        output = model(input_ids=torch.cat([questions, tokens], dim=-1), use_cache=False)
    return output.logits[:, -1]


def tokenizer_of(words, pattern=None, unknown="a"):
    """A tokenizer with a token for each word, from 2, one of which also stands for what is unknown."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: i + 2 for i, word in enumerate(words)}, unknown))
    pattern = pattern or "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def fixed_model(probabilities, kinds):
    """A source whose next token depends on the kind of the last one only; 0 is that of tokens left out.

    `probabilities`, `[kinds, vocab]`, are those of the next token.
    """

    def log_probs(prompts, token_ids):
        return probabilities.log()[[kinds.get(prompt[-1], 0) for prompt in prompts]][:, token_ids]

    return from_function(log_probs)


def next_token(model, question):
    """The model behind one question, without padding and without a cache.

    Of a small vocabulary, all tokens that may stand in the last two places run together.
    """
    size, known = getattr(model.config, "vocab_size", math.inf), {}

    def log_probs(written):
        written = tuple(written)
        if written not in known:
            last = min(2, len(written)) if size <= 16 else 0
            kept = written[: len(written) - last]
            rows = (
                [kept + ends for ends in itertools.product(range(size), repeat=last)] if last else [written]
            )
            found = _logits(model, question, rows).double().log_softmax(-1).tolist()
            known.update(zip(rows, found, strict=True))
        return known[written]

    return log_probs


def texts_of(vocabulary):
    texts = {t.token_id: t.text for t in vocabulary.tokens}
    texts |= {i: "-" if factor < 0 else "+" for i, factor in vocabulary.sign_ids.items()}
    return texts | dict.fromkeys(vocabulary.point_ids, ".")


@functools.cache
def _read(text):
    return NumberReader().read(text)


@functools.cache
def _steps_of_width(texts, width):
    """What leads to a number of a width: whether a text is one, and the tokens that may follow it."""
    digits, decimals, signed = width.digits, width.decimals, width.signed
    whole = (
        ("[+-]?" if signed else "") + f"[0-9]{{{digits}}}" + (rf"\.[0-9]{{{decimals}}}" if decimals else "")
    )
    sample = "0" * digits + ("." + "0" * decimals if decimals else "")

    @functools.cache
    def is_whole(text):
        return bool(re.fullmatch(whole, text))

    def is_prefix(text):
        rest = sample[len(text.lstrip("+-")) :]
        return any(is_whole(text + sign + rest) for sign in ("", "+", "-"))

    @functools.cache
    def allowed(text):
        found = [(i, text + token.strip()) for i, token in texts if not (text and token[0] in " +-")]
        return tuple(i for i, after in found if is_prefix(after) and (is_whole(after) or allowed(after)))

    return is_whole, allowed


def fixed_width(model, texts, width):
    """Every number of a width with its probability, from all token sequences, masked step by step.

    Also the allowed probability along each number, averaged over its spellings.
    """
    is_whole, allowed = _steps_of_width(tuple(texts.items()), width)
    probabilities: dict[float, float] = {}
    masses: dict[float, float] = {}

    def write(written, text, probability, mass):
        if is_whole(text):
            value = float(text) + 0.0
            probabilities[value] = probabilities.get(value, 0) + probability
            masses[value] = masses.get(value, 0) + probability * mass
            return
        logs = model(written)
        shares = {i: math.exp(logs[i]) for i in allowed(text)}
        total = sum(shares.values())
        for i, share in shares.items():
            write([*written, i], text + texts[i].strip(), probability * share / total, mass * total)

    write([], "", 1.0, 1.0)
    return probabilities, {value: masses[value] / p for value, p in probabilities.items() if p}


def any_length(model, vocabulary, max_digits):
    """The numbers below 10 to `max_digits` with their probability, from all token sequences.

    Also the probability that a number is started, and that of numbers that are a part of something else.
    """
    found: dict[float, float] = {}
    starts = parts = 0.0

    def end(prefix, probability, is_cut=False):
        nonlocal starts, parts
        if prefix.value is not None:
            starts += probability
            if abs(prefix.value) < 10**max_digits and not is_cut:
                found[prefix.value] = found.get(prefix.value, 0.0) + probability
                parts += probability * prefix.tied

    def write(written, text, probability):
        probabilities = [math.exp(p) for p in model(written)]
        now, ends = _read(text), 1.0
        for i, token in vocabulary.pieces.items():
            then = _read(text + token)
            if then.open or then[:2] != now[:2]:
                ends -= probabilities[i]
                longer, many = text + token, sum(map(str.isdigit, text + token)) > max_digits
                if then.open and not many:
                    write([*written, i], longer, probability * probabilities[i])
                else:  # of `1,23`, the 1 alone is no number
                    is_cut = then.open and many and NumberReader().length(longer) < len(longer)
                    end(then, probability * probabilities[i], is_cut)
        end(now, probability * ends)

    write([], "", 1.0)
    return found, starts, parts


def assert_quantile(value, quantile, numbers, allowed):
    """F(x-) <= q <= F(x), within `allowed`; values themselves are ill-posed where digits tie."""
    assert value in numbers, f"{value} is no number of the model's"
    total = sum(numbers.values())
    below = sum(p for x, p in numbers.items() if x < value) / total
    assert below <= quantile + allowed, f"F({value}-) = {below}, of the quantile {quantile}"
    assert below + numbers[value] / total >= quantile - allowed, f"F({value}) is below {quantile}"


def batch_of(questions, side="left"):
    """The questions with padding on one side, as a tokenizer returns them."""
    longest = max(map(len, questions))
    rows, masks = [], []
    for question in questions:
        padding = longest - len(question)
        row, mask = [PAD] * padding + question, [0] * padding + [1] * len(question)
        rows.append(row if side == "left" else row[padding:] + row[:padding])
        masks.append(mask if side == "left" else mask[padding:] + mask[:padding])
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(masks)}
