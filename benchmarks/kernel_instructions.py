"""Predict the speed of the Triton kernels without a GPU: `python benchmarks/kernel_instructions.py`.

Triton compiles for GPUs that are not there, and its wheel brings NVIDIA's disassembler. This compiles both
kernels for a vocabulary of 128,256 tokens, counts the instructions that their main loop executes for a logit,
and divides them by what a GPU can do while its memory moves that logit. A kernel whose shares of the issue
slots and of the exponential units are well below 100 % is limited by memory.

    python benchmarks/kernel_instructions.py              print the table
    python benchmarks/kernel_instructions.py --softcap    for logits with a soft cap whose mean is read, too
    python benchmarks/kernel_instructions.py --markdown results/benchmarks/kernels.md    put it into that page

Nothing is timed. `python benchmarks/losses.py --device cuda` times the losses on a GPU.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ntloss.engine import kernels

NUMBERS = 10  # number tokens
KERNELS = {"read_rows": 1, "write_rows": 2}  # and how often they move a logit
SIZES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}  # bytes of a logit


@dataclass(frozen=True)
class GPU:
    """What a GPU can do; the clock is assumed, all else is from data sheets.

    Args:
        name: Product.
        target: What Triton compiles for.
        multiprocessors: Their number.
        clock: In Hz, under load.
        bandwidth: Of the memory, in bytes a second.
        lanes: Instructions of a thread that a multiprocessor issues in a cycle.
        exponentials: Exponentials that a multiprocessor computes in a cycle.
        slots: Issue slots that an exponential occupies.
        registers: Registers of 32 bits on a multiprocessor.
        granule: Registers of a thread are allocated in multiples of this.
        threads: Most threads on a multiprocessor.
    """

    name: str
    target: GPUTarget
    multiprocessors: int
    clock: float
    bandwidth: float
    lanes: int
    exponentials: int = 16
    slots: int = 1
    registers: int = 1 << 16
    granule: int = 8
    threads: int = 2048


# AMD's exponentials occupy the vector unit for four times as long as other instructions; NVIDIA's have a unit
# of their own.
GPUS = (
    GPU("A100", GPUTarget("cuda", 80, 32), 108, 1.41e9, 2.04e12, 128),
    GPU("H100", GPUTarget("cuda", 90, 32), 132, 1.75e9, 3.35e12, 128),
    GPU("B200", GPUTarget("cuda", 100, 32), 148, 1.75e9, 8.0e12, 128),
    GPU("MI300X", GPUTarget("hip", "gfx942", 64), 304, 1.9e9, 5.3e12, 64, slots=4, registers=1 << 17),
)


@dataclass(frozen=True)
class Count:
    """A kernel, compiled for a GPU.

    Args:
        instructions: Instructions a logit in the main loop, by kind.
        widths: Bits of each load and store in the main loop.
        registers: Registers of a thread.
        spilled: Bytes of local memory of a thread.
        occupancy: Share of the threads that a multiprocessor can hold.
        size: Bytes moved for a logit.
        gpu: The GPU.
    """

    instructions: dict[str, float]
    widths: frozenset[int]
    registers: int
    spilled: int
    occupancy: float
    size: int
    gpu: GPU

    @property
    def total(self) -> float:
        """Instructions a logit."""
        return sum(self.instructions.values())

    @property
    def issued(self) -> float:
        """Share of the issue slots at full bandwidth."""
        slots = self.total + (self.gpu.slots - 1) * self.instructions["exponential"]
        return slots * self._logits_in_a_cycle() / self.gpu.lanes

    @property
    def exponentials(self) -> float:
        """Share of the exponential units at full bandwidth."""
        return self.instructions["exponential"] * self._logits_in_a_cycle() / self.gpu.exponentials

    def _logits_in_a_cycle(self) -> float:
        # Of a multiprocessor, at full bandwidth.
        return self.gpu.bandwidth / self.size / self.gpu.multiprocessors / self.gpu.clock


def count(
    name: str, gpu: GPU, dtype: str, softcap: float | None = None, mean: bool = False, edges: bool = False
) -> Count:
    """Compile a kernel, and count what its main loop executes.

    Args:
        name: One of `KERNELS`.
        gpu: The GPU to compile for.
        dtype: Of the logits, one of `SIZES`.
        softcap: Of the logits; None for none.
        mean: Whether the mean logit is read, as label smoothing needs it.
        edges: Whether rows begin or end anywhere, as those of 50,257 logits.

    Returns:
        What was counted.
    """
    compiled = compile_kernel(getattr(kernels, name), gpu.target, dtype, softcap, mean, edges)
    if gpu.target.backend == "cuda":
        text, registers, spilled = _disassemble(compiled.asm["cubin"])
        lines = _sass(text)
    else:
        text = compiled.asm["amdgcn"]
        registers, spilled = _figure("vgpr_count", text), _figure("private_segment_fixed_size", text)
        lines = _gcn(text)
    threads = kernels.WARPS * gpu.target.warp_size
    logits = 2 * kernels.LANES * (16 // SIZES[dtype]) // threads  # of a thread, each time around
    loop = _main_loop(lines, logits)
    allocated = -(-registers // gpu.granule) * gpu.granule * threads
    programs = min(gpu.registers // allocated, gpu.threads // threads)
    kinds = Counter(map(_kind, loop))
    return Count(
        {kind: kinds[kind] / logits for kind in ("memory", "exponential", "arithmetic", "other")},
        frozenset(_width(each) for each in loop if _kind(each) == "memory"),
        registers,
        spilled,
        programs * threads / gpu.threads,
        SIZES[dtype] * KERNELS[name],
        gpu,
    )


def compile_kernel(
    kernel: Any, target: GPUTarget, dtype: str, softcap: float | None, mean: bool, edges: bool = False
) -> Any:
    """Compile a kernel for contiguous logits of a head with a multiple of 16 tokens, or with any number."""
    constants = {"scale": 1.0, "softcap": softcap, "mean": mean, "lanes": kernels.LANES, "number_block": 16}
    constants |= {"vector": 16 // SIZES[dtype], "edges": edges}
    constants |= {"column_stride": 1, "grad_column_stride": 1}
    types = {
        "logits": f"*{dtype}",
        "grad": f"*{dtype}",
        "labels": "*i64",
        "token_ids": "*i64",
        "first": "i32",
    }
    # Triton specializes kernels for numbers that are multiples of 16.
    widths = dict.fromkeys(("row_stride", "grad_row_stride", "vocab_size"), "i32")
    multiples = {} if edges else widths
    types |= widths
    types |= {"numbers": "i32", **dict.fromkeys(constants, "constexpr")}
    computed = "*fp64" if dtype == "fp64" else "*fp32"
    signature = {name: types.get(name, computed) for name in kernel.arg_names}
    places = {(i,): constants[name] for i, name in enumerate(kernel.arg_names) if name in constants}
    divisible = [
        i for i, (name, kind) in enumerate(signature.items()) if kind.startswith("*") or name in multiples
    ]
    hints = {(i,): [["tt.divisibility", 16]] for i in divisible}
    source = ASTSource(fn=kernel, signature=signature, constexprs=places, attrs=hints)
    return triton.compile(source, target=target, options={"num_warps": kernels.WARPS})


def _disassemble(cubin: bytes) -> tuple[str, int, int]:
    # The instructions, registers of a thread, and bytes of its local memory.
    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        texts = [
            subprocess.run([program, option, file.name], capture_output=True, text=True, check=True).stdout
            for option in ("-sass", "--dump-resource-usage")
        ]
    return texts[0], _figure("REG", texts[1]), _figure("STACK", texts[1]) + _figure("LOCAL", texts[1])


def _figure(name: str, text: str) -> int:
    found = re.search(rf"\.?\b{name}:\s*(\d+)", text)
    if found is None:
        raise RuntimeError(f"no {name} in what the compiler wrote")
    return int(found[1])


def _sass(text: str) -> list[tuple[str, str | None, str]]:
    # Address, address that a branch leads to, instruction.
    lines = re.findall(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(.*?)\s*;", text)
    targets = [re.search(r"0x([0-9a-f]+)", line) if line.startswith("BRA") else None for _, line in lines]
    return [
        (at.lstrip("0"), to and to[1].lstrip("0"), line)
        for (at, line), to in zip(lines, targets, strict=True)
    ]


def _gcn(text: str) -> list[tuple[str, str | None, str]]:
    # Label before an instruction, label that a branch leads to, instruction.
    lines, at = [], ""
    for line in text.splitlines():
        if label := re.match(r"(\.LBB\w+):", line):
            at = label[1]
        elif re.match(r"\t[a-z]", line):
            to = re.match(r"\ts_c?branch\w*\s+(\.LBB\w+)", line)
            lines.append((at, to and to[1], line.strip()))
            at = ""
    return lines


def _main_loop(lines: Sequence[tuple[str, str | None, str]], logits: int) -> list[str]:
    """Return the instructions of the loop that computes an exponential for each of a thread's `logits`."""
    places = {at: i for i, (at, _, _) in enumerate(lines) if at}
    loops = [
        [line for _, _, line in lines[places[to] : i + 1]]
        for i, (_, to, _) in enumerate(lines)
        if to is not None and places.get(to, i + 1) <= i
    ]
    # Branches back to earlier code that is not a loop enclose more.
    loop = min((loop for loop in loops if sum(map(_is_exponential, loop)) >= logits), key=len)
    # AMD's scalar instructions are issued beside those of threads.
    return [line for line in loop if not line.startswith("s_")]


def _is_exponential(line: str) -> bool:
    return _kind(line) == "exponential"


_KINDS = {
    "memory": r"LDG|STG|global_(load|store)",
    # Reciprocals are computed by the same unit.
    "exponential": r"MUFU|v_(exp|rcp)_",
    "other": r"F2FP|v_cvt",
    "arithmetic": r"FH?(ADD|MUL|FMA|MNMX|SETP|SEL)|v_(pk_)?(add|sub|mul|fma|fmac|max3?|div_\w+)_f(32|64)",
}


def _kind(line: str) -> str:
    return next((kind for kind, pattern in _KINDS.items() if re.match(pattern, line)), "other")


def _width(line: str) -> int:
    if words := re.search(r"dword(?:x(\d))?", line):
        return 32 * int(words[1] or 1)
    bits = re.search(r"\.(?:[US])?(8|16|64|128)\b", line.split()[0])
    return int(bits[1]) if bits else 32


def rows(softcap: float | None = None, mean: bool = False) -> list[list[str]]:
    """Return the rows of the table: see `HEADING`."""
    result = []
    for gpu in GPUS:
        for dtype in ("bf16", "fp32"):
            for name in KERNELS:
                c = count(name, gpu, dtype, softcap, mean)
                arch = gpu.target.arch
                of_kinds = [f"{c.total:.1f}", *(f"{each:.1f}" for each in c.instructions.values())]
                shares = [f"{100 * share:.0f} %" for share in (c.occupancy, c.issued, c.exponentials)]
                row = [gpu.name, arch if isinstance(arch, str) else f"sm_{arch}", dtype, f"`{name}`"]
                result.append([*row, *of_kinds, str(c.registers), shares[0], str(c.size), *shares[1:]])
    return result


HEADING = [
    *("GPU", "target", "dtype", "kernel", "instructions a logit", "memory", "exponential", "arithmetic"),
    *("other", "registers", "occupancy", "bytes a logit", "issue slots", "exponential units"),
]


def render(softcap: float | None = None, mean: bool = False) -> str:
    """Render the table and its assumptions."""
    from report import markdown

    assumed = "; ".join(
        f"{gpu.name}: {gpu.multiprocessors} multiprocessors at {gpu.clock / 1e9:.2f} GHz, "
        f"{gpu.bandwidth / 1e12:.2f} TB/s"
        for gpu in GPUS
    )
    return (
        f"{markdown(HEADING, rows(softcap, mean))}\n\n"
        f"Compiled by Triton {triton.__version__}. The last two columns are shares at full bandwidth. "
        f"Assumptions: {assumed}. In a cycle, a multiprocessor issues an instruction for 128 threads and "
        "computes 16 exponentials (MI300X: for 64 threads, and an exponential takes four times as long).\n"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--softcap", action="store_true", help="cap the logits, and read their mean")
    parser.add_argument("--markdown", type=Path, help="page to put the table into, between its markers")
    options = parser.parse_args(arguments)
    text = render(30.0 if options.softcap else None, options.softcap)
    print(text)
    if options.markdown:
        from report import insert

        insert(text, options.markdown, "kernels")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
