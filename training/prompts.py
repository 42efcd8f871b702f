"""Prompts from files and data sets, in the layouts that people have them in.

A row has `messages` (role and content), `conversations` (from and value, or role and content),
`turns` (what the user says, turn by turn), `prompt` (one turn) or `text` (to be continued as it
stands, without a chat template); the first of these that it has counts. `id` and `category` are
kept if they are there.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from treespec.errors import DataError

LAYOUTS = ("messages", "conversations", "turns", "prompt", "text")

_ROLES = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "system": "system",
    "developer": "developer",
}
_ENDINGS = (".jsonl", ".json", ".parquet")


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat.

    Attributes:
        role: "system", "developer", "user" or "assistant".
        content: its text.
    """

    role: str
    content: str

    def as_dict(self) -> dict[str, str]:
        """For a chat template."""
        return {"role": self.role, "content": self.content}


@dataclass(frozen=True, slots=True)
class Turn:
    """What is said up to one answer of the assistant.

    Attributes:
        request: messages before the answer; the last is the user's.
        answer: the answer that the data have; None if they have none.
    """

    request: tuple[Message, ...]
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """Something to be answered.

    Attributes:
        id: unique; made of the content if the data have none.
        category: what kind of prompt it is, if known.
        turns: the chat; empty for a text.
        text: to be continued as it stands; None for a chat.
    """

    id: str
    category: str | None
    turns: tuple[Turn, ...] = ()
    text: str | None = None


def read_prompts(sources: Sequence[str | Path] = (), data_sets: Sequence[str] = ()) -> list[Prompt]:
    """Prompts of files, folders and data sets; one that comes twice is taken once.

    Args:
        sources: JSON lines, JSON or Parquet files, and folders of them.
        data_sets: names for `datasets.load_dataset`, with `:split` if it is not "train".

    Raises:
        DataError: if a file is missing or a row cannot be understood, naming file and row.
    """
    by_id: dict[str, Prompt] = {}
    asked: set[str] = set()
    files = [file for source in sources for file in _files(Path(source).expanduser())]
    origins = [(str(file), _rows(file)) for file in files]
    origins += [(name, _data_set_rows(name)) for name in data_sets]
    for origin, rows in origins:
        for number, row in rows:
            try:
                prompt = prompt_of(row)
            except DataError as error:
                raise DataError(f"{origin}, row {number}: {error}") from error
            content = _content_id(prompt)
            if content in asked:
                continue
            if prompt.id in by_id:
                raise DataError(
                    f"{origin}, row {number}: another prompt has the id {prompt.id!r} too; give "
                    "each its own, or leave ids out"
                )
            by_id[prompt.id] = prompt
            asked.add(content)
    if not by_id:
        names = ", ".join(str(source) for source in [*sources, *data_sets])
        raise DataError(f"no prompts in {names or 'an empty list of sources'}; give some")
    return list(by_id.values())


def choose(prompts: Sequence[Prompt], limit: int | None) -> list[Prompt]:
    """At most `limit` prompts, spread evenly; a greater limit keeps those of a smaller one."""
    ranked = sorted(prompts, key=lambda one: hashlib.sha256(one.id.encode()).digest())
    return ranked[:limit]


def prompt_of(row: object) -> Prompt:
    """A prompt from one row.

    Raises:
        DataError: if it has none of the layouts, or one is damaged.
    """
    if not isinstance(row, Mapping):
        raise DataError(f"a row must be an object, not {type(row).__name__}")
    layout = next((name for name in LAYOUTS if row.get(name) is not None), None)
    if layout is None:
        raise DataError(
            f"none of {', '.join(LAYOUTS)} is there; found {', '.join(map(str, row)) or 'nothing'}"
        )
    content = row[layout]
    if layout in ("prompt", "text") and isinstance(content, str):
        if not content.strip():
            raise DataError(f"{layout} is empty")
        if layout == "text":
            prompt = Prompt("", None, text=content)
        else:
            prompt = Prompt("", None, (Turn((Message("user", content),)),))
    elif layout == "turns":
        prompt = Prompt("", None, _turns([Message("user", one) for one in _texts(content)]))
    elif layout != "text" and isinstance(content, Sequence) and not isinstance(content, str):
        prompt = Prompt("", None, _turns([_message(one) for one in content]))
    else:
        raise DataError(f"{layout} cannot be a {type(content).__name__}")
    name, category = row.get("id"), row.get("category")
    return replace(
        prompt,
        id=_content_id(prompt) if name is None else str(name),
        category=None if category is None else str(category),
    )


def _turns(messages: Sequence[Message]) -> tuple[Turn, ...]:
    """Messages in turns; what an assistant says before the first user answers nothing."""
    turns: list[Turn] = []
    waiting: list[Message] = []
    for message in messages:
        asked = any(one.role == "user" for one in waiting)
        if message.role == "assistant":
            if asked:
                turns.append(Turn(tuple(waiting), message.content))
                waiting = []
            elif turns:
                raise DataError("two messages of the assistant follow each other; join them")
            continue
        if message.role == "user" and asked:
            turns.append(Turn(tuple(waiting)))
            waiting = []
        waiting.append(message)
    if any(one.role == "user" for one in waiting):
        turns.append(Turn(tuple(waiting)))
    if not turns:
        raise DataError("there is no message of a user")
    return tuple(turns)


def _message(value: object) -> Message:
    if not isinstance(value, Mapping):
        raise DataError(f"a message must be an object, not {type(value).__name__}")
    role = value.get("role", value.get("from"))
    content = value.get("content", value.get("value"))
    if role not in _ROLES:
        raise DataError(f"the role {role!r} is none of {', '.join(sorted(_ROLES))}")
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = "".join(_part(part) for part in content)
    if not isinstance(content, str):
        raise DataError(f"the content of a message must be text, not {type(content).__name__}")
    return Message(_ROLES[role], content)


def _part(part: object) -> str:
    """The text of one part of a message."""
    if isinstance(part, Mapping) and part.get("type") == "text":
        return str(part["text"])
    raise DataError("a message has parts that are not text; only text can be answered")


def _texts(value: object) -> list[str]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise DataError(f"turns must be a list of texts, not {type(value).__name__}")
    if not all(isinstance(one, str) and one.strip() for one in value):
        raise DataError("turns must be a list of texts that are not empty")
    return list(value)


def _content_id(prompt: Prompt) -> str:
    """Hash of what is asked; answers do not count."""
    asked = [[one.as_dict() for one in turn.request] for turn in prompt.turns]
    content = json.dumps([asked, prompt.text], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _files(path: Path) -> list[Path]:
    """The file itself, or the files of a folder."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in _ENDINGS)
        if not files:
            raise DataError(f"{path} has no {', '.join(_ENDINGS)} files")
        return files
    if not path.is_file():
        raise DataError(f"{path} does not exist; give a file or folder of prompts")
    if path.suffix not in _ENDINGS:
        raise DataError(f"{path} is none of {', '.join(_ENDINGS)}; convert it")
    return [path]


def _rows(path: Path) -> Iterator[tuple[int, object]]:
    """Rows of a file with their numbers, from 1."""
    if path.suffix == ".parquet":
        table = _datasets().load_dataset("parquet", data_files=str(path), split="train")
        yield from enumerate(table, start=1)
        return
    number = 0
    try:
        if (
            path.suffix == ".json"
            and (text := path.read_text(encoding="utf-8")).lstrip()[:1] == "["
        ):
            yield from enumerate(json.loads(text), start=1)
            return
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, json.loads(line)
    except ValueError as error:
        raise DataError(f"{path}, row {number or 1}: not JSON in UTF-8: {error}") from error


def _data_set_rows(name: str) -> Iterator[tuple[int, object]]:
    """Rows of a data set, by its name and split."""
    repo, _, part = name.partition(":")
    datasets = _datasets()
    # Loading can fail in many ways; all mean that the data set is not usable.
    try:
        table = datasets.load_dataset(repo, split=part or "train")
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(
            f"the data set {repo!r} could not be loaded: {error}; check its name and split"
        ) from error
    yield from enumerate(table, start=1)


def _datasets() -> Any:
    try:
        return import_module("datasets")
    except ImportError as error:
        raise DataError(
            "Parquet files and data sets need the package datasets; "
            "run `pip install treespec[train]`, or give JSON lines"
        ) from error
