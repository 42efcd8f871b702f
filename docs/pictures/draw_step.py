"""Draws one step as `step.svg`: a tree, its mask, and the cache before and after the commit.

What is drawn comes from the library: positions, mask and accepted path are computed, not typed.

Usage:
    python docs/pictures/draw_step.py
"""

from pathlib import Path

from treespec.attention import LayerKind, NewNodes, visibility
from treespec.tree import TokenTree
from treespec.verify.gumbel import walk

PREFIX = ("The", "cat", "sat")
PARENTS = (-1, 0, 0, 1, 1, 2, 4)
WORDS = ("on", "the", "a", "mat", "sofa", "chair", "and")
CHOICES = ("the", "sofa", "bench", "and", ".", ".", "slept")
"""The target's choice after each node."""

PICTURE = Path(__file__).with_name("step.svg")
WIDTH, HEIGHT = 900, 650
CELL = 38
STYLE = """
text { font: 14px ui-monospace, Menlo, Consolas, monospace; fill: #1f2933; }
.middle { text-anchor: middle; }
.end { text-anchor: end; }
.small { font-size: 12px; fill: #52606d; }
.title { font: bold 15px system-ui, sans-serif; }
.card { fill: #ffffff; stroke: #cbd2d9; }
rect { stroke: #7b8794; fill: #ffffff; }
.cached { fill: #d9e8fb; }
.accepted { fill: #c6edd0; }
.next { fill: #ffffff; stroke-dasharray: 4 3; }
.free { fill: #f5f7fa; stroke: #e4e7eb; }
.seen { fill: #8fb8ec; }
.own { fill: #6fbf86; }
path { stroke: #7b8794; fill: none; }
.taken { stroke: #2f8a4b; stroke-width: 2.5; }
"""


def rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    """A box."""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" class="{kind}"/>'


def text(x: float, y: float, content: object, kind: str = "middle") -> str:
    """A line of text; `y` is its base line."""
    return f'<text x="{x}" y="{y}" class="{kind}">{content}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "") -> str:
    """A smooth line that leaves and arrives level."""
    bend = (x1 + x2) / 2
    return f'<path d="M{x1} {y1} C{bend} {y1} {bend} {y2} {x2} {y2}" class="{kind}"/>'


class Step:
    """The step that is drawn: what was drafted, and what the target accepts of it."""

    def __init__(self) -> None:
        ids = {word: token for token, word in enumerate(dict.fromkeys((*WORDS, *CHOICES)))}
        self.tree = TokenTree.from_lists(PARENTS, [ids[word] for word in WORDS])
        self.topology = self.tree.topology
        self.path = walk(self.tree, [ids[word] for word in CHOICES]).path
        self.next_word = CHOICES[self.path[-1]]
        nodes = NewNodes(self.tree.tokens, self.topology.depths, self.topology.ancestor_mask)
        self.slots = (*PREFIX, *WORDS)
        self.mask = visibility(
            [nodes], [len(PREFIX)], len(self.slots), LayerKind("full_attention")
        )[0]


def draw_tree(step: Step) -> list[str]:
    """Tokens by position: the cached prefix, the tree, and the next token."""
    rows = (90, 60, 150, 25, 95, 150, 70)  # height of each node
    left, top, gap, width = 60, 70, 118, 78
    parts = [text(30, 34, "1  Draft: a tree of guesses below the last token", "title")]
    last = len(PREFIX) + step.topology.max_depth
    for position in range(last + 1):
        x = left + position * gap
        parts.append(text(x + width / 2, top - 8, f"position {position}", "middle small"))
    xs = [left + (len(PREFIX) + depth) * gap for depth in step.topology.depth_list]
    ys = [top + height - 25 for height in rows]
    end = step.path[-1]
    next_x, next_y = xs[end] + gap, ys[end] + 26
    for node, parent in enumerate(PARENTS):
        if parent >= 0:
            kind = "taken" if node in step.path else ""
            parts.append(line(xs[parent] + width, ys[parent] + 15, xs[node], ys[node] + 15, kind))
    parts.append(line(xs[end] + width, ys[end] + 15, next_x, next_y + 15, "taken"))
    for position, word in enumerate(PREFIX):
        x = left + position * gap
        parts += [
            rect(x, ys[0], width, 30, "cached"),
            text(x + width / 2, ys[0] + 20, word),
            line(x + width, ys[0] + 15, x + gap, ys[0] + 15),
        ]
    for node, word in enumerate(WORDS):
        kind = "accepted" if node in step.path else ""
        parts += [
            rect(xs[node], ys[node], width, 30, kind),
            text(xs[node] + width / 2, ys[node] + 20, f"{node} {word}"),
        ]
    parts += [
        rect(next_x, next_y, width, 30, "next"),
        text(next_x + width / 2, next_y + 20, step.next_word),
        text(left, top + 150, "blue: in the cache", "small"),
        text(left, top + 168, "green: the root and the accepted path", "small"),
        text(left, top + 186, "dashed: the target's next token", "small"),
    ]
    return parts


def draw_mask(step: Step) -> list[str]:
    """Which slot each node sees."""
    left, top = 170, 370
    parts = [text(30, 318, "2  Score: one forward pass, each node sees its own past", "title")]
    for slot, word in enumerate(step.slots):
        x = left + (slot + 0.5) * CELL
        parts += [text(x, top - 22, slot, "middle small"), text(x, top - 7, word, "middle small")]
    parts.append(text(left - 12, top - 22, "slot", "end small"))
    for node, word in enumerate(WORDS):
        y = top + node * CELL
        position = len(PREFIX) + step.topology.depth_list[node]
        parts.append(text(left - 12, y + 18, f"{node} {word}", "end"))
        parts.append(text(left - 12, y + 32, f"position {position}", "end small"))
        for slot, sees in enumerate(step.mask[node].tolist()):
            kind = "free" if not sees else "seen" if slot < len(PREFIX) else "own"
            parts.append(rect(left + slot * CELL + 2, y + 2, CELL - 4, CELL - 4, kind))
    return parts


def draw_cache(step: Step) -> list[str]:
    """One column of slots after the forward pass, one after the commit."""
    left, right, top, width, high = 620, 790, 370, 76, 26
    kept = [*range(len(PREFIX)), *(len(PREFIX) + node for node in step.path)]
    parts = [
        text(590, 318, "3  Commit: keep the path", "title"),
        text(left + width / 2, top - 8, "scored", "middle small"),
        text(right + width / 2, top - 8, "committed", "middle small"),
    ]
    for slot, word in enumerate(step.slots):
        y = top + slot * high
        kind = "cached" if slot < len(PREFIX) else "accepted" if slot in kept else ""
        parts += [
            text(left - 10, y + 18, slot, "end small"),
            rect(left, y + 1, width, high - 3, kind),
            text(left + width / 2, y + 17, word),
        ]
    for slot in range(len(step.slots)):
        y = top + slot * high
        kind = "free" if slot >= len(kept) else "cached"
        parts.append(rect(right, y + 1, width, high - 3, kind))
        if slot < len(kept):
            parts.append(text(right + width / 2, y + 17, step.slots[kept[slot]]))
        if len(PREFIX) <= slot < len(kept):
            source = top + kept[slot] * high + high / 2
            parts.append(line(left + width, source, right, y + high / 2, "taken"))
    return parts


def draw() -> str:
    """The whole picture."""
    step = Step()
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<title>One step: a token tree, its attention mask, and the cache</title>",
        f"<style>{STYLE}</style>",
        rect(1, 1, WIDTH - 2, HEIGHT - 2, "card"),
        *draw_tree(step),
        *draw_mask(step),
        *draw_cache(step),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
