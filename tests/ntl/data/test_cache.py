import gzip
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ntl.config import Gsm8k, MathematicsDataset
from ntl.data import Example, fingerprint
from ntl.data.cache import ROWS, read_cached
from ntl.data.files import Layout, load_files, read_lines, read_pairs
from ntl.errors import UserError

EXAMPLES = [Example(f"What is {i}?", str(i)) for i in range(ROWS + 5)]


@pytest.fixture
def examples(tmp_path):
    return read_cached(["numbers"], Gsm8k(cache_dir=str(tmp_path)), lambda: EXAMPLES)


def test_examples_in_a_file_behave_like_a_list(examples):
    assert len(examples) == len(EXAMPLES)
    assert list(examples) == EXAMPLES
    assert (examples[7], examples[-1]) == (EXAMPLES[7], EXAMPLES[-1])
    assert examples[ROWS - 2 : ROWS + 2] == EXAMPLES[ROWS - 2 : ROWS + 2]
    assert pickle.loads(pickle.dumps(examples))[3] == EXAMPLES[3]
    with pytest.raises(IndexError):
        examples[len(EXAMPLES)]


def test_lists_and_files_of_equal_content_have_the_same_fingerprint(examples):
    assert fingerprint(examples) == fingerprint(EXAMPLES) != fingerprint(EXAMPLES[:-1])


def test_cached_examples_are_not_read_again(tmp_path, examples):
    def fail():
        raise AssertionError

    assert list(read_cached(["numbers"], Gsm8k(cache_dir=str(tmp_path)), fail)) == list(examples)
    for source, given in ((["others"], {}), (["numbers"], {"split_seed": 1})):
        other = read_cached(source, Gsm8k(cache_dir=str(tmp_path), **given), lambda: EXAMPLES[:3])
        assert len(other) == 3
        assert other.fingerprint != examples.fingerprint


def test_simultaneous_readers_wait_for_the_first(tmp_path):
    reads = []
    all_here = threading.Barrier(4)

    def read():
        reads.append(1)
        return EXAMPLES

    def ask(_):
        all_here.wait()
        return read_cached(["numbers"], Gsm8k(cache_dir=str(tmp_path)), read).fingerprint

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(ask, range(4)))) == 1
    assert len(reads) == 1


def test_an_interrupted_read_leaves_no_partial_cache(tmp_path):
    def broken():
        yield from EXAMPLES
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_cached(["numbers"], Gsm8k(cache_dir=str(tmp_path)), broken)
    assert len(read_cached(["numbers"], Gsm8k(cache_dir=str(tmp_path)), lambda: EXAMPLES)) == len(EXAMPLES)


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UserError, match=r"cache_dir=.*file cannot be written .*example dataset_args.cache_dir="
    ):
        read_cached(["numbers"], Gsm8k(cache_dir=str(tmp_path / "file")), lambda: EXAMPLES)


def test_a_file_that_has_changed_is_read_again(tmp_path):
    layout = Layout({"train": "train.txt", "validation": "val.txt"})
    for name in layout.files.values():
        (tmp_path / name).write_text("What is 1?\n1\n")
    settings = MathematicsDataset(data_dir=str(tmp_path), cache_dir=str(tmp_path / "cache"))
    before = load_files(settings, [layout])
    (tmp_path / "train.txt").write_text("What is 1?\n1\nWhat is 2?\n2\n")
    after = load_files(settings, [layout])
    assert (len(before.train), len(after.train)) == (1, 2)


def test_only_a_line_feed_ends_a_line(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes("one\u2028still one\x85\r\ntwo\x0bstill two\nthree".encode())
    assert [line.rstrip("\r\n") for line in read_lines(path)] == [
        "one\u2028still one\x85",
        "two\x0bstill two",
        "three",
    ]


def test_a_gzip_file_is_read_and_a_truncated_one_is_an_error(tmp_path):
    path = tmp_path / "pairs.txt.gz"
    path.write_bytes(gzip.compress(b"".join(f"What is {i}?\n{i}\n".encode() for i in range(50_000))))
    assert len(list(read_pairs(path))) == 50_000
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(UserError, match=r"pairs.txt.gz, line \d+: the file cannot be read .*truncated"):
        list(read_pairs(path))


@pytest.mark.parametrize("line", [3, 25_001])
def test_a_line_that_is_not_text_is_an_error_that_names_it(tmp_path, line):
    path = tmp_path / "pairs.txt"
    lines = [b"text\n"] * 30_000
    lines[line - 1] = b"caf\xe9\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(
        UserError, match=rf"pairs.txt, line {line}: the file cannot be read .* expected UTF-8"
    ):
        list(read_pairs(path))
