import gzip
import pickle

import pytest

from ntl.data import Example, fingerprint
from ntl.data.files import map_pairs, read_lines, write_atomically
from ntl.errors import UserError


@pytest.fixture
def pairs(tmp_path):
    """Return more examples than are read at once, and a file that holds them."""
    examples = [Example(f"What is {i}?", str(i)) for i in range(10_005)]
    path = tmp_path / "pairs.txt"
    path.write_text("".join(f"{example.question}\n{example.answer}\n" for example in examples))
    return examples, path


def test_memory_mapped_examples_behave_like_a_list(pairs):
    examples, path = pairs
    mapped = map_pairs(path)
    assert len(mapped) == len(examples)
    assert list(mapped) == examples
    assert (mapped[7], mapped[-1]) == (examples[7], examples[-1])
    assert pickle.loads(pickle.dumps(mapped))[3] == examples[3]
    assert fingerprint(mapped) == fingerprint(examples) != fingerprint(examples[:-1])
    with pytest.raises(IndexError):
        mapped[len(examples)]


def test_a_file_that_has_changed_is_read_again(pairs):
    _, path = pairs
    map_pairs(path)
    path.write_text("What is 1?\n1\n")
    assert list(map_pairs(path)) == [Example("What is 1?", "1")]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("How?\n1\nWhat?\n", ", line 4"),
        ("How?\n1\nWhat?\n-12", ", line 4"),
        ("How?\n\n", ", line 2"),
        ("", ""),
    ],
)
def test_a_malformed_file_of_pairs_is_an_error_that_names_file_and_line(tmp_path, content, line):
    path = tmp_path / "pairs.txt"
    path.write_text(content)
    with pytest.raises(UserError, match=f"pairs.txt{line}"):
        map_pairs(path)


def test_only_a_line_feed_ends_a_line(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes("\ufeffone\u2028still one\x85\r\ntwo\x0bstill two\nthree".encode())
    lines = [line.rstrip("\r\n") for line in read_lines(path)]
    assert lines == ["one\u2028still one\x85", "two\x0bstill two", "three"]


def test_a_gzip_file_is_read_and_a_truncated_one_is_an_error(tmp_path):
    path = tmp_path / "lines.txt.gz"
    path.write_bytes(gzip.compress(b"".join(f"What is {i}?\n".encode() for i in range(50_000))))
    assert len([*read_lines(path)]) == 50_000
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(UserError, match=r"lines.txt.gz"):
        list(read_lines(path))


def test_a_file_is_replaced_at_once_and_nothing_is_left_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "metrics.json"
    write_atomically(path, "one")
    write_atomically(path, "two\r\n")
    assert path.read_bytes() == b"two\r\n"
    monkeypatch.setattr("os.replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_atomically(path, "three")
    assert path.read_bytes() == b"two\r\n"
    assert [*tmp_path.iterdir()] == [path]
