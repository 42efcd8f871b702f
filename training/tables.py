"""An evaluation for readers: tables for a terminal, and for a model card."""

import math
from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from treespec.training.results import DepthRates, Evaluation

_TREE_HEADINGS = ("tree", "tokens a pass", "draft tokens a pass")
_DEPTH_HEADINGS = ("depth", "positions", "top-1", "top-2", "top-5", "top-10", "in a chain")
# Share from which the ground of the heat map is too bright for white letters.
_BRIGHT = 0.35


def tables_of(found: Evaluation) -> list[Table]:
    """Guesses by depth, the heat map by depth and rank, and acceptance lengths."""
    depths = _table("guesses, the right tokens before them given", _DEPTH_HEADINGS)
    for one in found.depths:
        depths.add_row(*_depth_cells(one))
    trees = _table("acceptance length, simulated", _TREE_HEADINGS)
    for cells in _tree_cells(found):
        trees.add_row(*cells)
    return [depths, _heat_map(found.table), trees]


def decoded_text(found: Evaluation) -> str | None:
    """What decoding gave beside what was simulated, as a sentence; None if nothing was decoded."""
    if found.decoded is None or found.decoded_simulated is None:
        return None
    return (
        f"Decoding with the {found.decoded.name} gave {found.decoded.acceptance_length:.2f} tokens "
        f"a pass where {found.decoded_simulated.acceptance_length:.2f} were simulated."
    )


def markdown_of(found: Evaluation) -> str:
    """A section for a model card."""
    sentence = decoded_text(found)
    lines = [
        f"Measured on {found.texts}: {found.passages:,} answers, {found.tokens:,} tokens.",
        *([] if sentence is None else [sentence]),
        "",
        *_markdown(_TREE_HEADINGS, _tree_cells(found)),
        "",
        *_markdown(_DEPTH_HEADINGS, [_depth_cells(one) for one in found.depths]),
    ]
    return "\n".join(lines) + "\n"


def _tree_cells(found: Evaluation) -> list[list[str]]:
    return [
        [one.name, f"{one.acceptance_length:.2f}", f"{one.drafted_per_step:.1f}"]
        for one in found.simulated
    ]


def _depth_cells(one: DepthRates) -> list[str]:
    tops = (one.top1, one.top2, one.top5, one.top10)
    chained = "" if one.chained is None else f"{one.chained:.3f}"
    return [str(one.depth), f"{one.positions:,}", *(f"{share:.3f}" for share in tops), chained]


def _heat_map(shares: Sequence[Sequence[float]]) -> Table:
    """Shares by depth and rank, larger ones on a brighter ground."""
    ranks = [str(rank) for rank in range(1, len(shares[0]) + 1)] if shares else []
    table = _table("which guess was right, by depth and rank", ["depth", *ranks])
    for depth, row in enumerate(shares, start=1):
        table.add_row(str(depth), *(_heat(share) for share in row))
    return table


def _heat(share: float) -> Text:
    light = math.sqrt(min(max(share, 0.0), 1.0))  # the root keeps small shares apart
    ink = "black" if share > _BRIGHT else "white"
    ground = f"rgb({round(255 * light)},{round(130 * light)},40)"
    return Text(f"{share:.2f}", style=f"{ink} on {ground}")


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left")
    return table


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    ruler = ["---", *("---:" for _ in headings[1:])]
    return [f"| {' | '.join(cells)} |" for cells in (headings, ruler, *rows)]
