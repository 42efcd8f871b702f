"""Which families decode with trees, from tiny random models; writes the page on supported models.

python -m benchmarks.families [--page docs/supported_models.md] [--only NAME]

Every family runs the whole matrix: four drafters, a single prompt and ragged batches padded on
either side, 64 new tokens, in float32, against `model.generate`. Exits with 1 if any text differs.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import transformers
import typer

from tests.families import FAMILIES, REFUSED, Family, build
from tests.matrix import NEW_TOKENS, cases_of, run_case
from tests.rig import NearTies
from treespec import TreeDecoder, UnsupportedTargetError

PAGE_START = "<!-- table: benchmarks/families.py -->"
PAGE_END = "<!-- end of table -->"
IMPLEMENTATIONS = ("eager", "sdpa")


@dataclass(frozen=True)
class Outcome:
    """How one family did on one attention implementation.

    Attributes:
        near_ties: texts compared, and how many differed at a near-tie.
        failures: what went wrong in cases that failed.
    """

    near_ties: NearTies
    failures: tuple[str, ...]

    def __str__(self) -> str:
        """The cell of the table."""
        if self.failures:
            return f"{len(self.failures)} failed"
        ties = f", {self.near_ties.count} near-ties" if self.near_ties.count else ""
        return f"{self.near_ties.compared} equal{ties}"


def run_family(family: Family, attention: str) -> Outcome:
    """The matrix of one family on one attention implementation."""
    near_ties, failures = NearTies(), []
    for case in cases_of(family, (attention,)):
        try:
            run_case(case, near_ties)
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:
            failures.append(f"{case.name}: {type(error).__name__}: {error}")
    return Outcome(near_ties, tuple(failures))


def remark(family: Family) -> str:
    """What is particular about the tiny model that was run."""
    if family.window is None:
        return ""
    config = family.make_config()
    chunked = "chunked_attention" in (getattr(config, "layer_types", None) or ())
    return f"{'chunks' if chunked else 'window'} of {family.window}"


def refusal(family: Family) -> tuple[str, str]:
    """Class of a refused model, and the reason that is given.

    Raises:
        RuntimeError: if it is not refused.
    """
    model = build(family, "eager")
    name = type(model).__name__
    try:
        TreeDecoder(model, None, self_check=False)
    except UnsupportedTargetError as error:
        return name, re.sub(rf"^{name}:? ", "", str(error)).split("; ")[0]
    raise RuntimeError(f"{name} is not refused; move it from REFUSED to FAMILIES")


def table(results: dict[str, dict[str, Outcome]]) -> Iterator[str]:
    """Lines of the tables of supported and of refused models."""
    yield f"| family | class | {' | '.join(IMPLEMENTATIONS)} | local layers |"
    yield "|---" * (len(IMPLEMENTATIONS) + 3) + "|"
    for family in FAMILIES:
        if family.name in results:
            cells = [str(results[family.name].get(column, "–")) for column in IMPLEMENTATIONS]
            name = type(build(family, "eager")).__name__
            yield f"| {family.name} | `{name}` | {' | '.join(cells)} | {remark(family)} |"
    yield ""
    yield "Refused at construction:"
    yield ""
    yield "| class | reason |"
    yield "|---|---|"
    for family in REFUSED:
        name, reason = refusal(family)
        yield f"| `{name}` | {reason} |"


def main(
    page: Annotated[Path | None, typer.Option(help="Page to write the tables into.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Families to run; all if left out.")
    ] = None,
) -> None:
    """Run the matrix, print what failed, and write the tables."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    results: dict[str, dict[str, Outcome]] = {}
    for family in FAMILIES:
        if only and family.name not in only:
            continue
        results[family.name] = {name: run_family(family, name) for name in family.attentions}
        print(family.name, {name: str(one) for name, one in results[family.name].items()})
        for outcome in results[family.name].values():
            print("".join(f"  {failure}\n" for failure in outcome.failures), end="")
    if page is not None:
        text = page.read_text(encoding="utf-8")
        head, _, rest = text.partition(PAGE_START)
        _, _, tail = rest.partition(PAGE_END)
        lines = "\n".join(table(results))
        page.write_text(f"{head}{PAGE_START}\n\n{lines}\n\n{PAGE_END}{tail}", encoding="utf-8")
    outcomes = [one for family in results.values() for one in family.values()]
    compared = sum(one.near_ties.compared for one in outcomes)
    ties = sum(one.near_ties.count for one in outcomes)
    failed = sum(len(one.failures) for one in outcomes)
    print(f"{compared} texts of {NEW_TOKENS} tokens compared, {ties} near-ties, {failed} failures")
    if failed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
