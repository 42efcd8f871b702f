"""Expanders for tests: candidates that depend on a node's path alone."""

import math
import random
from collections.abc import Mapping, Sequence

from treespec.tree import NO_CANDIDATES, Candidates, TokenTree, TreeLimits, grow

ROOT = 9
HUGE = 10**9


class Guesser:
    """Candidates that depend on the path alone; counts what it is asked."""

    def __init__(self, candidates):
        self.candidates = candidates
        self.frontiers = []

    def expand(self, trees, frontiers):
        self.frontiers.append([list(frontier) for frontier in frontiers])
        return [
            [self.candidates(path_of(tree, node)) for node in frontier]
            for tree, frontier in zip(trees, frontiers, strict=True)
        ]


def path_of(tree, node):
    """Tokens from below the root down to a node of a growing tree."""
    path = []
    while node:
        path.append(tree.tokens[node])
        node = tree.parents[node]
    return tuple(reversed(path))


def same(tokens: Sequence[int], log_probs: Sequence[float]) -> Guesser:
    """The same candidates everywhere."""
    return Guesser(lambda path: Candidates(tokens, log_probs))


def listed(candidates: Mapping[tuple[int, ...], Candidates]) -> Guesser:
    """Candidates of the listed paths, none elsewhere."""
    return Guesser(lambda path: candidates.get(path, NO_CANDIDATES))


def imagined(seed: int, max_width: int = 3) -> Guesser:
    """Candidates drawn at random for each path, with many ties and dead ends."""

    def candidates(path):
        generator = random.Random(f"{seed}{path}")
        width = generator.randint(0, max_width)
        log_probs = sorted((generator.randint(-6, 0) / 2 for _ in range(width)), reverse=True)
        return Candidates(generator.sample(range(8), width), log_probs)

    return Guesser(candidates)


def sampled(seed: int) -> Guesser:
    """Three tokens drawn without replacement for each path, in draw order."""

    def candidates(path):
        generator = random.Random(f"{seed}{path}")
        weights = {token: generator.random() for token in range(4)}
        tokens = sorted(weights, key=lambda token: generator.random() / weights[token])[:3]
        total = sum(weights.values())
        return Candidates(tokens, [math.log(weights[token] / total) for token in tokens])

    return Guesser(candidates)


def grown(guesser: Guesser, *, budget=HUGE, depth=HUGE, width=HUGE, topology=None) -> TokenTree:
    limits = TreeLimits(budget=budget, depth=depth, width=width, topology=topology)
    return grow(guesser, [ROOT], [limits], draw="topk")[0].tree


def nodes_of(tree: TokenTree) -> dict[tuple[int, ...], float]:
    """Score of each node by its path of tokens, without the root."""
    paths = [tree.path_tokens(node)[1:] for node in range(len(tree))]
    return dict(zip(paths, tree.scores.tolist(), strict=True))
