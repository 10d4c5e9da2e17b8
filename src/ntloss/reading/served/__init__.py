"""Numbers of a model behind a server: vLLM, SGLang, llama.cpp, or any with OpenAI's `/v1/completions`.

    server = ServedModel("http://localhost:8000")
    reading = read_number(server, tokenizer, "How many legs does a spider have?")

It needs an HTTP client, `pip install 'ntloss[serve]'`, and no model in torch.
"""

from ntloss.reading.served.model import ServedModel
from ntloss.reading.served.transport import ServerError

__all__ = ["ServedModel", "ServerError"]
