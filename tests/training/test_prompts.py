"""Prompts are read in every layout that people have them in."""

import json
from pathlib import Path
from typing import Any

import pytest

from treespec.errors import DataError
from treespec.training.prompts import Message, Prompt, choose, prompt_of, read_prompts

QUESTION = (Message("user", "why?"),)


def lines(path: Path, *rows: object) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "why?"},
        {"turns": ["why?"]},
        {"messages": [{"role": "user", "content": "why?"}]},
        {"prompt": [{"role": "user", "content": "why?"}]},
        {"conversations": [{"from": "human", "value": "why?"}]},
        {"conversations": [{"role": "user", "content": "why?"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "why?"}]}]},
        {"messages": [{"from": "gpt", "value": "hi"}, {"from": "human", "value": "why?"}]},
        {"messages": [{"role": "user", "content": "why?"}], "prompt": "not this"},
    ],
)
def test_every_layout_gives_the_same_turn(row: dict[str, Any]):
    prompt = prompt_of(row)
    assert [turn.request for turn in prompt.turns] == [QUESTION]


def test_text_is_to_be_continued_as_it_stands():
    assert prompt_of({"text": "Once upon"}).text == "Once upon"


def test_an_answer_belongs_to_the_turn_before_it():
    row = {
        "conversations": [
            {"from": "system", "value": "be brief"},
            {"from": "human", "value": "a?"},
            {"from": "gpt", "value": "b"},
            {"from": "human", "value": "c?"},
        ]
    }
    first, second = prompt_of(row).turns
    assert first.request == (Message("system", "be brief"), Message("user", "a?"))
    assert (first.answer, second.answer) == ("b", None)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([], "must be an object"),
        ({"question": "why?"}, "none of messages, .*found question"),
        ({"prompt": "  "}, "prompt is empty"),
        ({"prompt": 3}, "cannot be a int"),
        ({"turns": "why?"}, "must be a list"),
        ({"turns": [""]}, "not empty"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "'wizard' is none of"),
        ({"messages": [{"role": "user", "content": None}]}, "must be text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "not text"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "no message of a user"),
        (
            {
                "messages": [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": "b"},
                    {"role": "assistant", "content": "c"},
                ]
            },
            "follow each other",
        ),
    ],
)
def test_a_row_that_cannot_be_understood_is_refused(row: object, message: str):
    with pytest.raises(DataError, match=message):
        prompt_of(row)


def test_a_damaged_line_is_named(tmp_path: Path):
    path = lines(tmp_path / "p.jsonl", {"prompt": "a"})
    path.write_text(path.read_text() + "{broken\n")
    with pytest.raises(DataError, match=r"p\.jsonl, row 2: not JSON"):
        read_prompts([path])


def test_a_folder_gives_all_its_files(tmp_path: Path):
    lines(tmp_path / "a.jsonl", {"prompt": "a"})
    (tmp_path / "b.json").write_text(json.dumps([{"prompt": "b"}]))
    lines(tmp_path / "c.json", {"prompt": "c"})
    assert len(read_prompts([tmp_path])) == 3


def test_a_prompt_that_comes_twice_is_taken_once(tmp_path: Path):
    path = lines(tmp_path / "p.jsonl", {"prompt": "a"}, {"id": "x", "prompt": "a"})
    assert len(read_prompts([path])) == 1


def test_two_prompts_with_one_id_are_refused(tmp_path: Path):
    path = lines(tmp_path / "p.jsonl", {"id": 1, "prompt": "a"}, {"id": 1, "prompt": "b"})
    with pytest.raises(DataError, match="row 2: another prompt has the id '1'"):
        read_prompts([path])


@pytest.mark.parametrize("name", ["missing.jsonl", "notes.txt"])
def test_a_file_that_is_no_prompts_is_refused(name: str, tmp_path: Path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match=name):
        read_prompts([tmp_path / name])


def test_no_prompts_at_all_are_refused(tmp_path: Path):
    with pytest.raises(DataError, match="no prompts"):
        read_prompts([lines(tmp_path / "p.jsonl")])


def test_a_greater_limit_keeps_the_prompts_of_a_smaller_one():
    prompts = [Prompt(str(number), None, text="x") for number in range(50)]
    assert choose(prompts, 20)[:10] == choose(prompts[::-1], 10)
    assert len(choose(prompts, None)) == 50


def test_parquet_is_read(tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list([{"prompt": "why?"}]).to_parquet(tmp_path / "p.parquet")
    assert read_prompts([tmp_path / "p.parquet"])[0].turns[0].request == QUESTION
