"""Worker of a two-process test: a sharded model has the same loss and answers as an unsharded one."""

import torch.distributed as dist
from approach_cases import BEAMS, NTL, QUESTIONS, make, rows_of
from tolerances import assert_close
from torch.distributed.fsdp import fully_shard

from ntl.config import LossSettings

CE = LossSettings()
CASES = [
    ("t5-tiny", NTL, {}),
    ("t5-tiny", NTL, {"encoding": "rt"}),
    ("t5-tiny", CE, {"encoding": "xval"}),
    ("llama-tiny", NTL, {"family": "decoder_only"}),
]


def main():
    dist.init_process_group("gloo")
    for shape, loss, settings in CASES:
        whole, sharded = (make(shape, loss, **settings) for _ in range(2))
        for approach in (whole, sharded):
            approach.fit(["1", "2"])
        for block in sharded.model.modules():
            if type(block).__name__ in ("T5Block", "LlamaDecoderLayer"):
                fully_shard(block)
        model = fully_shard(sharded.model)
        # Ranks with different numbers of questions and answer lengths must still run equally many steps.
        questions = QUESTIONS[: 2 + dist.get_rank()]
        answers = whole.answer(whole.model, questions, BEAMS)
        assert sharded.answer(model, questions, BEAMS) == answers
        batch = whole.collate(rows_of(whole))
        counts = whole.count(batch)
        share = sharded.loss(model, batch, counts)
        assert_close(share.loss, whole.loss(whole.model, batch, counts).loss)
        share.loss.backward()
        assert sharded.answer(model, questions, BEAMS) == answers
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
