"""Worker of a two-process test: a sharded model has the same answers as an unsharded one."""

import torch.distributed as dist
from model_cases import BEAMS, QUESTIONS, make
from torch.distributed.fsdp import fully_shard

CASES = [
    ("t5-tiny", {}),
    ("t5-tiny", {"encoding": "rt"}),
    ("t5-tiny", {"encoding": "xval"}),
    ("llama-tiny", {"family": "decoder_only"}),
]


def main():
    dist.init_process_group("gloo")
    for shape, settings in CASES:
        whole, sharded = (make(shape, **settings) for _ in range(2))
        for built in (whole, sharded):
            built.fit(["1", "2"])
        for block in sharded.model.modules():
            if type(block).__name__ in ("T5Block", "LlamaDecoderLayer"):
                fully_shard(block)
        model = fully_shard(sharded.model)
        # Ranks with different numbers of questions and answer lengths must still run equally many steps.
        questions = QUESTIONS[: 2 + dist.get_rank()]
        answers = whole.answer(whole.model, questions, *BEAMS)
        assert sharded.answer(model, questions, *BEAMS) == answers
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
