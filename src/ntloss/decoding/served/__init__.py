"""Numbers of a model behind a server: vLLM, SGLang, llama.cpp, or any with OpenAI's `/v1/completions`.

    server = ServedModel("http://localhost:8000")
    read = number_quantiles(server, prompts, server.vocabulary())

It needs an HTTP client, `pip install 'ntloss[serve]'`, and no model in torch.
"""

from ntloss.decoding.served.model import ServedModel
from ntloss.decoding.served.transport import ServerError

__all__ = ["ServedModel", "ServerError"]
