"""Hypothesis strategies for topologies, token trees and tables of acceptance."""

from fractions import Fraction

from hypothesis import strategies as st

from treespec.tree import TokenTree, TreeTopology

VOCAB_SIZE = 6


@st.composite
def topologies(draw: st.DrawFn, max_size: int = 12) -> TreeTopology:
    """Any topology of at most `max_size` nodes, not only those ordered by depth."""
    size = draw(st.integers(1, max_size))
    parents = [draw(st.integers(0, node - 1)) for node in range(1, size)]
    return TreeTopology([-1, *parents])


@st.composite
def token_trees(
    draw: st.DrawFn,
    max_size: int = 12,
    root: int | None = None,
    draws: tuple[str, ...] = ("shared", "topk"),
    vocab_size: int = VOCAB_SIZE,
) -> TokenTree:
    """A tree as a drafter would grow it: siblings differ, no node scores above its parent.

    Scores are multiples of 1/4, so that ties are common and sums are exact.
    """
    parents, tokens, scores = [-1], [draw(_tokens(vocab_size)) if root is None else root], [0.0]
    nodes = st.tuples(st.integers(0, max_size - 1), _tokens(vocab_size), st.integers(0, 8))
    for place, token, quarters in draw(st.lists(nodes, max_size=max_size - 1)):
        parent = place % len(parents)
        if (parent, token) not in zip(parents, tokens, strict=True):
            parents.append(parent)
            tokens.append(token)
            scores.append(scores[parent] - quarters / 4)
    return TokenTree.from_lists(parents, tokens, draw=draw(st.sampled_from(draws)), scores=scores)


def _tokens(vocab_size: int) -> st.SearchStrategy[int]:
    return st.integers(0, vocab_size - 1)


def acceptances() -> st.SearchStrategy[Fraction]:
    """Probabilities with a small denominator, 0 and 1 among them."""
    return st.builds(Fraction, st.integers(0, 10), st.just(10))


def acceptance_rows(max_width: int = 3) -> st.SearchStrategy[list[Fraction]]:
    """Acceptance by rank, in any order."""
    return st.lists(acceptances(), min_size=1, max_size=max_width)


def acceptance_tables(
    max_depth: int = 3, max_width: int = 3
) -> st.SearchStrategy[list[list[Fraction]]]:
    """Acceptance by depth and rank, in any order."""
    return st.lists(acceptance_rows(max_width), max_size=max_depth)
