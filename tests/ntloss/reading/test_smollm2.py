"""What a pretrained model is read to say; skips without SmolLM2 (`make model`)."""

import pytest
import torch

from ntloss import NumberVocabulary
from ntloss.numbers import NumberFormat
from ntloss.reading import Question, UnlikelyNumberWarning, number_quantiles, read_number

pytestmark = pytest.mark.pretrained


def test_a_width_that_is_too_large_is_forced_on_the_model_with_a_warning(smollm2):
    tokenizer, model = smollm2
    with pytest.warns(UnlikelyNumberWarning, match="fewer digits"):
        wide = read_number(
            model, tokenizer, Question("12 + 13 =", prefill="12 + 13 = "), format=NumberFormat(digits=3)
        )
    assert wide.median == 251
    assert wide.ends < 0.1


@pytest.mark.filterwarnings("ignore::ntloss.reading.UnlikelyNumberWarning")
def test_a_padded_batch_gives_the_quantiles_of_single_prompts(smollm2):
    tokenizer, model = smollm2
    vocabulary = NumberVocabulary.from_tokenizer(tokenizer, vocab_size=model.config.vocab_size)
    prompts = ["The price is $", "Speed of a cheetah in km/h: ", "He died at the age of "]

    def read(texts):
        inputs = tokenizer(texts, padding=True, return_tensors="pt")
        return number_quantiles(model, inputs, vocabulary, format=NumberFormat(digits=2)).values

    # A quantile at which two digits meet may go to either.
    assert (read(prompts) == torch.cat([read([prompt]) for prompt in prompts])).double().mean() >= 8 / 9
