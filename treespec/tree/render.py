"""Token trees as text."""

import math
from collections.abc import Callable, Sequence

from treespec.errors import InvalidTreeError
from treespec.tree.token_tree import TokenTree

_ACCEPTED, _REJECTED, _NEXT = "● ", "○ ", "▸ "


def render(
    tree: TokenTree,
    *,
    decode: Callable[[int], str] | None = None,
    path: Sequence[int] = (),
    next_token: int | None = None,
    names: Sequence[str] = (),
) -> str:
    """A tree as lines of text, one per node, children below their parent in draw order.

    Each line holds the token and, where the tree has scores, the drafter's estimate that the node
    is accepted:

        ● 'The'
        ├─ ● ' cat'  0.62
        │  ├─ ○ ' sat'  0.40
        │  └─ ▸ ' ran'
        └─ ○ ' dog'  0.21

    Args:
        tree: the tree.
        decode: text of a token id, shown quoted; without it the id is shown.
        path: accepted nodes from the root down, as in `Acceptance.path`; marked ● where all
            others are marked ○. Nothing is marked without it.
        next_token: token emitted after the path, shown below its last node and marked ▸.
        names: the drafters' names by source bit; with them each node tells who proposed it.

    Raises:
        InvalidTreeError: if the path does not lead from the root down, or a next token comes
            without one.
    """
    _check_path(tree, path, next_token)
    accepted = set(path)

    def line(node: int | None) -> str:
        token = tree.token_list[node] if node is not None else next_token
        text = str(token) if decode is None or token is None else repr(decode(token))
        if node is None:
            return _NEXT + text
        mark = "" if not path else _ACCEPTED if node in accepted else _REJECTED
        return mark + text + _notes(tree, node, names)

    lines: list[str] = []
    waiting: list[tuple[int | None, str, str]] = [(0, "", "")]  # node, its indent, its children's
    while waiting:
        node, start, indent = waiting.pop()
        lines.append(start + line(node))
        below: list[int | None] = [] if node is None else list(tree.topology.children[node])
        if next_token is not None and node == path[-1]:
            below.append(None)  # stands for the next token
        branches = [("├─ ", "│  ")] * (len(below) - 1) + [("└─ ", "   ")]
        for child, (branch, stem) in reversed(list(zip(below, branches, strict=False))):
            waiting.append((child, indent + branch, indent + stem))
    return "\n".join(lines)


def _check_path(tree: TokenTree, path: Sequence[int], next_token: int | None) -> None:
    if next_token is not None and not path:
        raise InvalidTreeError("a next token follows an accepted path; give path=[0, ...] too")
    for place, node in enumerate(path):
        parent = path[place - 1] if place else -1
        if not 0 <= node < len(tree) or tree.topology.parent_list[node] != parent:
            wanted = "the root" if place == 0 else f"a child of node {parent}"
            raise InvalidTreeError(
                f"path {list(path)} does not lead from the root down: node {node} is not {wanted}"
            )


def _notes(tree: TokenTree, node: int, names: Sequence[str]) -> str:
    """What stands behind a node's token; nothing behind the root's."""
    if node == 0:
        return ""
    notes = []
    if tree.scores is not None:
        notes.append(f"{math.exp(float(tree.scores[node])):.2f}")
    if names:
        bits = int(tree.sources[node])
        notes.append("+".join(name for bit, name in enumerate(names) if bits >> bit & 1))
    return "".join(f"  {note}" for note in notes)
