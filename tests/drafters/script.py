"""Leads a drafter's session through a text that is known beforehand."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from treespec.drafters.base import DraftContext, Drafter, Round
from treespec.sampling import RowNoise
from treespec.target import TargetOutput
from treespec.tree.shapes import TreeLimits
from treespec.tree.token_tree import TokenTree
from treespec.tree.topology import TreeTopology
from treespec.verify.acceptance import Acceptance

# Large enough that a row without a preference gives every token next to nothing.
VOCAB = 1000


def context(rows: int = 1, *, vocab_size: int = VOCAB, temperature: float = 0.0) -> DraftContext:
    """A greedy generation, or a sampled one."""
    return DraftContext(
        noises=[RowNoise(row if temperature > 0 else None) for row in range(rows)],
        temperature=temperature,
        vocab_size=vocab_size,
        device=torch.device("cpu"),
        draw="topk",
    )


def limits(
    budget: int = 31, depth: int = 31, width: int = 8, topology: TreeTopology | None = None
) -> TreeLimits:
    """Limits of one step."""
    return TreeLimits(budget=budget, depth=depth, width=width, topology=topology)


def opinion(
    probs: Mapping[int, float] | None = None, *, vocab_size: int = VOCAB
) -> Float[Tensor, " V"]:
    """Logits that give these tokens these probabilities; without any, no token is preferred."""
    probs = probs or {}
    rest = (1.0 - sum(probs.values())) / (vocab_size - len(probs))
    row = torch.full((vocab_size,), max(rest, 1e-12))
    for token, prob in probs.items():
        row[token] = prob
    return row.log()


def prefilled(
    first: int,
    *,
    guesses: Sequence[Sequence[int]] | None = None,
    last: Float[Tensor, " V"] | None = None,
) -> Round:
    """What is observed after a prompt was read."""
    row = opinion() if last is None else last
    top_ids = None if guesses is None else torch.tensor(guesses)
    return Round(None, Acceptance((), first), TargetOutput(row[None], top_ids=top_ids))


def followed(
    tree: TokenTree,
    ahead: Sequence[int],
    opinions: Mapping[tuple[int, ...], Mapping[int, float]] | None = None,
    *,
    vocab_size: int = VOCAB,
) -> Round:
    """What is observed when the target goes on with the tokens `ahead`.

    Args:
        tree: the proposal.
        ahead: at least one token more than the tree can match.
        opinions: for paths of tokens below the root what the target thinks there.
        vocab_size: number of logits.
    """
    path = [0]
    for token in ahead:
        children = tree.topology.children[path[-1]]
        found = [child for child in children if tree.token_list[child] == token]
        if not found:
            break
        path.append(found[0])
    rows = [
        opinion((opinions or {}).get(tree.path_tokens(node)[1:]), vocab_size=vocab_size)
        for node in range(len(tree))
    ]
    accepted = Acceptance(tuple(path), ahead[len(path) - 1])
    return Round(tree, accepted, TargetOutput(torch.stack(rows)))


def begun(drafter: Drafter, prompt: Sequence[int], first: int, **observed):
    """A session of one row after its prompt was read; `observed` as for `prefilled`."""
    session = drafter.begin([torch.tensor(prompt)], context())
    session.observe([prefilled(first, **observed)])
    return session


def children(tree: TokenTree, *path: int) -> list[int]:
    """Tokens of the children of the node at a path of tokens below the root."""
    return [tree.token_list[child] for child in tree.topology.children[node_at(tree, *path)]]


def node_at(tree: TokenTree, *path: int) -> int:
    """The node at a path of tokens below the root."""
    node = 0
    for token in path:
        found = [n for n in tree.topology.children[node] if tree.token_list[n] == token]
        if not found:
            raise LookupError(f"no node carries {token} below {tree.path_tokens(node)}")
        node = found[0]
    return node


def paths(tree: TokenTree) -> set[tuple[int, ...]]:
    """Every node as its path of tokens below the root."""
    return {tree.path_tokens(node)[1:] for node in range(1, len(tree))}
