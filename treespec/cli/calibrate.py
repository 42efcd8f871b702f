"""`treespec calibrate`: the best static tree for draft heads."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from treespec.cli.loading import AttentionOption, DeviceOption, Dtype, DtypeOption
from treespec.cli.measuring import (
    AllOption,
    Choice,
    DepthOption,
    HeldOutOption,
    LimitOption,
    PositionsOption,
    SeedOption,
    load_target_and_heads,
    measure,
)
from treespec.cli.reporting import reported_errors
from treespec.training.calibrate import CalibratedTree, best_tree, saved_folder, store_tree
from treespec.training.data import open_data
from treespec.training.evaluate import EvaluationOptions
from treespec.training.results import TreeRates
from treespec.tree.shapes import BestFirst

# Guesses that may have a place in the tree.
_COLUMNS = 16


def calibrate(
    heads: Annotated[
        Path,
        typer.Option(
            metavar="HEADS", help="Folder of heads; the tree goes there.", show_default=False
        ),
    ],
    target: Annotated[
        str,
        typer.Option(metavar="TARGET", help="Folder or Hub id of a causal LM.", show_default=False),
    ],
    data: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Folder that `treespec distill` wrote; its held-out examples are taken.",
            show_default=False,
        ),
    ],
    budget: Annotated[int, typer.Option(min=1, help="Most draft tokens a step.")] = 31,
    held_out: HeldOutOption = None,
    seed: SeedOption = 0,
    everything: AllOption = False,
    limit: LimitOption = 64,
    depth: DepthOption = None,
    positions: PositionsOption = None,
    dtype: DtypeOption = Dtype.AUTO,
    device: DeviceOption = None,
    attention: AttentionOption = None,
) -> None:
    """Find the static tree that accepts most, and store it with the heads.

    Measures which guess is right how often, by depth, on texts that the heads were not trained on;
    the tree with the most expected tokens a pass follows from that. It is written into the heads'
    config.json, where `treespec.training.load_tree` finds it.

    A best-first tree of the same budget is shown beside it: it follows what the heads think of
    each step, and accepts more wherever that is to be trusted. A static tree has a fixed shape and
    costs nothing to grow.

    Exit code: 0, or 2 if the command line, the heads or the data cannot be used.

    **Examples**

    `treespec calibrate --heads ./heads --target Qwen/Qwen2.5-0.5B-Instruct --data ./data`

    `treespec calibrate --heads ./heads --target ./model --data ./data --budget 16`
    """
    with reported_errors():
        saved_folder(heads)  # refused before anything is measured
        choice = Choice(held_out=held_out, seed=seed, everything=everything, limit=limit)
        folder = open_data(data)
        model, loaded = load_target_and_heads(
            target, str(heads), dtype=dtype, device=device, attention=attention
        )
        folder.require_target(model)
        examples = choice.examples(folder)
        options = EvaluationOptions(
            texts=choice.name(folder, len(examples)),
            depth=depth,
            columns=_COLUMNS,
            shapes={"best-first": _dynamic(budget, depth)},
            positions=positions,
            seed=seed,
        )
        found = measure(model, loaded, examples, options, "looking at guesses")
        tree = best_tree(found, budget)
        again = replace(options, shapes={"static": tree.tree}, positions=1)
        walked = measure(model, loaded, examples, again, "walking the tree")
        path = store_tree(heads, tree)
    _show(tree, [*walked.simulated, *found.simulated])
    typer.echo(f"wrote the tree into {path}")


def _dynamic(budget: int, depth: int | None) -> BestFirst:
    """The best-first tree to compare with."""
    return BestFirst(budget=budget, depth=depth or budget)


def _show(tree: CalibratedTree, rates: list[TreeRates]) -> None:
    """What the tree is, and what it gives."""
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("tree", "tokens a pass", "draft tokens a pass"):
        table.add_column(heading, justify="left" if heading == "tree" else "right")
    for one in rates:
        table.add_row(one.name, f"{one.acceptance_length:.2f}", f"{one.drafted_per_step:.1f}")
    console.print(table)
    sizes = f"{len(tree.paths)} draft tokens in {max(map(len, tree.paths))} levels"
    typer.echo(f"{sizes}; its table promised {tree.acceptance_length:.2f} tokens a pass")
    typer.echo(str([list(path) for path in tree.paths]))
