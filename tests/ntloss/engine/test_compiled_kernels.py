"""The Triton kernels, compiled for GPUs that are not there."""

import itertools
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

# It has wheels for Linux only, and older releases need ROCm's linker for AMD.
triton = pytest.importorskip("triton", "3.7")
backend = pytest.importorskip("triton.backends.compiler")
compiler = pytest.importorskip("triton.compiler")
kernels = pytest.importorskip("ntloss.engine.kernels")


@pytest.fixture(scope="module", autouse=True)
def compile_anew(tmp_path_factory):
    """Nothing that was compiled before is used, and nothing is kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


TARGETS = {
    "A100": backend.GPUTarget("cuda", 80, 32),
    "H100": backend.GPUTarget("cuda", 90, 32),
    "B200": backend.GPUTarget("cuda", 100, 32),
    "MI300X": backend.GPUTarget("hip", "gfx942", 64),
}
SIZES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}  # bytes of a logit
KERNELS = ("read_rows", "write_rows")
# Each value once.
BY_DAY = [
    ("read_rows", "A100", "bf16", None),
    ("write_rows", "H100", "bf16", None),
    ("read_rows", "B200", "fp32", 30.0),
    ("write_rows", "MI300X", "fp32", 30.0),
]
BY_NIGHT = [
    case for case in itertools.product(KERNELS, TARGETS, ("bf16", "fp32"), (None, 30.0)) if case not in BY_DAY
]


# The interpreter accepts programs that the compiler rejects.
@pytest.mark.parametrize(
    ("name", "gpu", "dtype", "softcap"),
    [*BY_DAY, *(pytest.param(*case, marks=pytest.mark.slow) for case in BY_NIGHT)],
)
def test_a_compiled_kernel_keeps_what_it_needs_in_registers(name, gpu, dtype, softcap):
    registers, spilled = resources(compile_kernel(name, gpu, dtype, softcap))
    assert spilled == 0
    if gpu != "MI300X" and softcap is None:
        assert registers <= 64  # so that at least half of a multiprocessor's threads are busy


@pytest.mark.slow
@pytest.mark.parametrize("gpu", ["A100", "H100", "B200"])
def test_kernels_for_rows_at_any_address_spill_nothing(gpu):
    for name, softcap in itertools.product(KERNELS, (None, 30.0)):
        assert resources(compile_kernel(name, gpu, "bf16", softcap, edges=True))[1] == 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp16", "fp64"])
@pytest.mark.parametrize("gpu", ["H100", "MI300X"])
def test_kernels_compile_for_logits_of_other_dtypes(gpu, dtype):
    for name in KERNELS:
        compiled = compile_kernel(name, gpu, dtype, softcap=30.0)
        assert compiled.asm["hsaco" if gpu == "MI300X" else "cubin"]


def compile_kernel(name, gpu, dtype, softcap, edges=False):
    """Compile a kernel for contiguous logits, whose rows begin at multiples of 16 or, with `edges`, anywhere.

    With a soft cap, the kernel reads the mean logit, too.
    """
    kernel = getattr(kernels, name)
    constants = {"scale": 1.0, "softcap": softcap, "mean": softcap is not None, "lanes": kernels.LANES}
    constants |= {"number_block": 16, "vector": 16 // SIZES[dtype], "edges": edges}
    constants |= {"column_stride": 1, "grad_column_stride": 1}
    types = {"logits": f"*{dtype}", "grad": f"*{dtype}", "labels": "*i64", "token_ids": "*i64"}
    types |= {"first": "i32", "numbers": "i32", **dict.fromkeys(constants, "constexpr")}
    # Triton specializes kernels for numbers that are multiples of 16.
    widths = dict.fromkeys(("row_stride", "grad_row_stride", "vocab_size"), "i32")
    types |= widths
    signature = {name: types.get(name, "*fp64" if dtype == "fp64" else "*fp32") for name in kernel.arg_names}
    places = {(i,): constants[name] for i, name in enumerate(kernel.arg_names) if name in constants}
    divisible = [
        i
        for i, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or (name in widths and not edges)
    ]
    hints = {(i,): [["tt.divisibility", 16]] for i in divisible}
    source = compiler.ASTSource(fn=kernel, signature=signature, constexprs=places, attrs=hints)
    return triton.compile(source, target=TARGETS[gpu], options={"num_warps": kernels.WARPS})


def resources(compiled):
    """Return how many registers and how many bytes of local memory a thread of a compiled kernel has."""

    def figure(name):
        return int(re.search(rf"\.?\b{name}:\s*(\d+)", text)[1])

    if "amdgcn" in compiled.asm:
        text = compiled.asm["amdgcn"]
        return figure("vgpr_count"), figure("private_segment_fixed_size")
    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [program, "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return figure("REG"), figure("STACK") + figure("LOCAL")
