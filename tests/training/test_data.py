"""A folder of training data is read as it was written, or refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.chats import chat_model, chat_tokenizer
from treespec.errors import ConfigError, DataError
from treespec.heads.formats.fingerprint import Fingerprint
from treespec.training.conversations import Piece
from treespec.training.data import DataFolder, DataMeta, Example, open_data, split
from treespec.training.masks import MaskedText
from treespec.training.writing import DataWriter


def meta_of(taps: tuple[int, ...] | None = (1, 2), **options: Any) -> DataMeta:
    """Of the tiny chat model."""
    return DataMeta(
        target="tiny",
        fingerprint=Fingerprint.of(chat_model(), chat_tokenizer()),
        vocab_size=259,
        chat_template_sha256=None,
        taps=taps,
        hidden_dtype=None if taps is None else "float32",
        options=options,
    )


def piece(start: int, length: int = 6) -> Piece:
    """Tokens of which the last two are supervised, and states that tell places apart."""
    tokens = tuple(range(start, start + length))
    states = torch.arange(length * 4.0).reshape(length, 4) + start
    return Piece(MaskedText(tokens, ((length - 2, length),)), states)


def write(path: Path, count: int = 4) -> DataFolder:
    """A folder with examples of two pieces each, a shard for each conversation."""
    with DataWriter(path, meta_of(), shard_bytes=1) as writer:
        for number in range(count):
            writer.add(f"p{number}", "words", [piece(number), piece(10 + number)])
            writer.step()
    return open_data(path)


def example(name: str) -> Example:
    """One of no interest but its id."""
    return Example(name, None, torch.tensor([1, 2]), torch.tensor([False, True]))


def test_what_was_written_is_read(tmp_path: Path):
    data = write(tmp_path / "data")
    assert data.meta == meta_of()
    assert [one.id for one in data.examples[:3]] == ["p0", "p0/turn-2", "p1"]
    first = data.examples[1]
    assert first.category == "words"
    assert first.tokens.tolist() == [10, 11, 12, 13, 14, 15]
    assert first.supervised.tolist() == [False] * 4 + [True] * 2
    assert torch.equal(data.hidden(first), piece(10).states)
    assert data.num_supervised == 16


@pytest.mark.parametrize("cut", range(0, 800, 37))
def test_what_a_kill_leaves_is_mended(tmp_path: Path, cut: int):
    whole = write(tmp_path / "data")
    lines = tmp_path / "data/examples.jsonl"
    content = lines.read_bytes()
    assert len(content) > 800
    lines.write_bytes(content[:cut])
    (tmp_path / "data/.hidden-00009.safetensors").write_bytes(b"half")
    again = write_rest(tmp_path / "data")
    assert {one.id for one in again.examples} == {one.id for one in whole.examples}
    assert lines.read_bytes() == content
    for one in again.examples:
        number = int(one.id[1])
        expected = piece(10 + number if "turn" in one.id else number)
        assert torch.equal(again.hidden(one), expected.states)
    assert len(list((tmp_path / "data").glob("*hidden*.safetensors"))) == 4


def write_rest(path: Path) -> DataFolder:
    """What is missing of `write`."""
    with DataWriter(path, meta_of(), shard_bytes=1) as writer:
        for number in range(4):
            if f"p{number}" not in writer.done:
                writer.add(f"p{number}", "words", [piece(number), piece(10 + number)])
                writer.step()
    return open_data(path)


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path):
    write(tmp_path / "data", count=2)
    with (tmp_path / "data/examples.jsonl").open("a") as lines:
        lines.write('{"id": "late", "tok')
    assert len(open_data(tmp_path / "data").examples) == 4


def test_missing_states_of_the_last_token_are_zeros(tmp_path: Path):
    short = Piece(piece(3).text, piece(3).states[:5])
    with DataWriter(tmp_path, meta_of()) as writer:
        writer.add("p", None, [short])
    data = open_data(tmp_path)
    states = data.hidden(data.examples[0])
    assert torch.equal(states[:5], short.states)
    assert not states[5].any()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "line 5: Expecting value"),
        ('{"id": "x", "supervised": []}', "line 5: lacks 'tokens'"),
        ('{"id": "x", "tokens": [], "supervised": []}', "at least one id"),
        ('{"id": "x", "tokens": [1, 999], "supervised": []}', r"must be in \[0, 259\)"),
        ('{"id": "x", "tokens": [1, 2], "supervised": [[1, 3]]}', r"\[1, 3\) is empty or out"),
        ('{"id": "x", "tokens": [1, 2], "supervised": [[1, 2], [0, 1]]}', "out of order"),
        ('{"id": "p1", "tokens": [1, 2], "supervised": []}', "'p1' comes twice"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str, message: str):
    write(tmp_path / "data", count=2)
    with (tmp_path / "data/examples.jsonl").open("a") as lines:
        lines.write(line + "\n")
    with pytest.raises(DataError, match=message):
        open_data(tmp_path / "data")


def test_a_folder_of_something_else_is_refused(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match=r"has no data\.json"):
        open_data(tmp_path)
    with pytest.raises(DataError, match="no folder of training data"):
        DataWriter(tmp_path, meta_of())


def test_a_damaged_meta_is_refused(tmp_path: Path):
    write(tmp_path / "data", count=1)
    values = meta_of().as_dict()
    del values["fingerprint"]
    (tmp_path / "data/data.json").write_text(json.dumps(values))
    with pytest.raises(DataError, match="lacks fingerprint"):
        open_data(tmp_path / "data")


def test_other_settings_do_not_go_on_in_a_folder(tmp_path: Path):
    DataWriter(tmp_path / "data", meta_of(temperature=0.0))
    with pytest.raises(DataError, match=r"temperature was 0\.0, is 1\.0"):
        DataWriter(tmp_path / "data", meta_of(temperature=1.0))
    with pytest.raises(DataError, match="taps was"):
        DataWriter(tmp_path / "data", meta_of(taps=None, temperature=0.0))


def test_data_of_another_target_are_refused(tmp_path: Path):
    data = write(tmp_path / "data", count=1)
    data.require_target(chat_model(), chat_tokenizer())
    other = chat_model()
    with torch.no_grad():
        other.lm_head.weight.add_(1)
    with pytest.raises(DataError, match="other weights"):
        data.require_target(other, chat_tokenizer())


def test_states_of_other_tokens_are_refused(tmp_path: Path):
    data = write(tmp_path / "data", count=1)
    first = data.examples[0]
    changed = Example(first.id, first.category, first.tokens + 1, first.supervised)
    with pytest.raises(DataError, match="other tokens"):
        data.hidden(changed)


def test_mostly_empty_masks_are_refused(tmp_path: Path):
    with DataWriter(tmp_path, meta_of(taps=None)) as writer:
        for number in range(3):
            spans = ((1, 2),) if number == 0 else ()
            writer.add(str(number), None, [Piece(MaskedText((1, 2, 3), spans))])
    with pytest.raises(DataError, match="2 of 3 examples have no token of the assistant"):
        open_data(tmp_path)


def test_a_split_depends_on_ids_alone():
    examples = [example(f"p{number}") for number in range(40)]
    train, held_out = split(examples, 7, seed=1)
    train_again, again = split(examples[::-1], 7, seed=1)
    assert len(held_out) == 7
    assert {one.id for one in held_out} == {one.id for one in again}
    assert {one.id for one in train} == {one.id for one in train_again}
    assert {one.id for one in held_out} != {one.id for one in split(examples, 7, seed=2)[1]}


def test_a_split_tears_no_conversation_apart():
    examples = [example(f"p{number}{turn}") for number in range(9) for turn in ("", "/turn-2")]
    train, held_out = split(examples, 5)
    assert len(held_out) == 6
    assert not {one.conversation for one in train} & {one.conversation for one in held_out}


@pytest.mark.parametrize("held_out", [-1, 2])
def test_a_split_that_leaves_nothing_is_refused(held_out: int):
    with pytest.raises(ConfigError, match="held_out"):
        split([example("a"), example("b")], held_out)
