from collections.abc import Sequence

import pytest
import torch

from tests.drafters.script import begun, children, context, followed, limits, node_at, prefilled
from treespec.drafters.base import Drafter
from treespec.drafters.lookup import LookupDrafter
from treespec.drafters.merged import MergedDrafter
from treespec.drafters.plain import PlainDrafter
from treespec.drafters.recycle import RecycleDrafter
from treespec.errors import ConfigError, DrafterError
from treespec.tree.planning import from_paths
from treespec.tree.token_tree import TokenTree


class FixedDrafter:
    """Proposes the same paths every step, each node with the same estimate."""

    def __init__(
        self,
        paths: Sequence[Sequence[int]],
        *,
        estimate: float = 0.5,
        taps: tuple[int, ...] = (),
        draws: tuple[str, ...] = ("shared", "topk"),
    ) -> None:
        self.paths = paths
        self.log_estimate = float(torch.tensor(estimate).log())
        self.taps = taps
        self.draws = draws
        self.session: FixedSession | None = None

    def begin(self, prompts, context):
        self.session = FixedSession(self, len(prompts))
        return self.session


class FixedSession:
    """Remembers what it is told."""

    def __init__(self, drafter: FixedDrafter, rows: int) -> None:
        self.drafter = drafter
        self.rows = list(range(rows))
        self.roots: list[int] = []
        self.seen = []
        self.limits = []

    def propose(self, limits):
        self.limits = list(limits)
        return [self.tree(root) for root in self.roots]

    def tree(self, root: int) -> TokenTree:
        parents, tokens, scores, index = [-1], [root], [0.0], {(): 0}
        for path in map(tuple, self.drafter.paths):
            parent = index[path[:-1]]
            index[path] = len(parents)
            parents.append(parent)
            tokens.append(path[-1])
            scores.append(scores[parent] + self.drafter.log_estimate)
        return TokenTree.from_lists(parents, tokens, scores=scores)

    def observe(self, rounds):
        self.seen.append(list(rounds))
        self.roots = [one.acceptance.next_token for one in rounds]

    def keep(self, rows):
        self.rows = [self.rows[row] for row in rows]
        self.roots = [self.roots[row] for row in rows]


def propose(session, **bounds):
    return session.propose([limits(**bounds)])[0]


def sources(tree: TokenTree) -> dict[tuple[int, ...], int]:
    """Each node's bits by its path of tokens."""
    return {tree.path_tokens(node)[1:]: int(tree.sources[node]) for node in range(1, len(tree))}


def test_merged_drafter_is_a_drafter():
    assert isinstance(MergedDrafter([LookupDrafter()]), Drafter)


def test_nodes_carry_the_bits_of_all_predictors_that_named_them():
    drafter = MergedDrafter([LookupDrafter(), RecycleDrafter()])

    tree = propose(begun(drafter, [1, 2, 5, 1], 2, guesses=[[9, 8], [5, 6], [9, 8], [2, 8]]))

    found = sources(tree)
    assert (found[5,], found[6,]) == (0b11, 0b10)


def test_predictors_continue_each_other_s_branches():
    drafter = MergedDrafter([RecycleDrafter(), LookupDrafter()])
    text = [1, 2, 5, 7, 20, 21, 22, 23, 1]  # after 2 comes 7 according to the target alone

    tree = propose(begun(drafter, text, 2, guesses=[[9], [7], *[[9]] * 7]))

    found = sources(tree)
    assert found[7,] & 0b01
    assert found[7, 20] & 0b10


def test_other_drafters_trees_are_merged_with_those_of_predictors():
    drafter = MergedDrafter([FixedDrafter([[3], [3, 4], [30]]), LookupDrafter()])

    found = sources(propose(begun(drafter, [1, 2, 3, 9, 1], 2)))

    assert found[3,] == 0b11
    assert found[3, 4] == found[30,] == 0b01
    assert found[3, 9] == 0b10


def test_merged_drafters_among_the_parts_count_one_by_one():
    inner = MergedDrafter([FixedDrafter([[10]]), FixedDrafter([[11]])])

    session = begun(MergedDrafter([FixedDrafter([[12]]), inner, FixedDrafter([[10]])]), [1], 2)

    assert sources(propose(session)) == {(12,): 0b0001, (10,): 0b1010, (11,): 0b0100}


def test_every_part_is_told_of_the_round_as_it_was():
    parts = [FixedDrafter([[3], [3, 4]]), FixedDrafter([[5]])]
    session = begun(MergedDrafter(parts), [1], 2)

    one = followed(propose(session), [3, 4, 9])
    session.observe([one])

    assert [part.session.seen[-1] for part in parts] == [[one], [one]]


def test_predictors_learn_from_tokens_that_another_part_drafted():
    drafter = MergedDrafter([LookupDrafter(), FixedDrafter([[30], [30, 31]])])
    session = begun(drafter, [1], 2)

    session.observe([followed(propose(session), [30, 31, 30])])

    found = sources(propose(session))
    assert found[31,] & 0b01


def test_a_part_that_is_too_sure_of_itself_gives_way():
    boaster = FixedDrafter([[40], [41], [42], [43]], estimate=0.9)
    modest = FixedDrafter([[3], [4]], estimate=0.3)
    session = begun(MergedDrafter([boaster, modest]), [1], 2)
    before = propose(session, budget=4)

    for step in range(40):
        session.observe([followed(propose(session, budget=4), [3 + step % 2, 9])])

    after = propose(session, budget=4)
    assert set(children(before)) == {40, 41, 42, 43}
    assert {3, 4} <= set(children(after))


def test_a_part_that_keeps_its_word_keeps_its_scores():
    session = begun(MergedDrafter([FixedDrafter([[3]], estimate=0.5), PlainDrafter()]), [1], 2)

    for step in range(40):
        session.observe([followed(propose(session), [3, 9] if step % 2 else [8])])

    tree = propose(session)
    assert float(tree.scores[node_at(tree, 3)].exp()) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("bounds", [{"budget": 2}, {"width": 1}, {"budget": 0, "depth": 0}])
def test_limits_are_kept(bounds):
    drafter = MergedDrafter(
        [FixedDrafter([[3], [4], [5]][: bounds.get("budget", 3)]), RecycleDrafter()]
    )

    tree = propose(begun(drafter, [1, 2], 1, guesses=[[7, 8], [9, 10]]), **bounds)

    assert len(tree) - 1 <= bounds.get("budget", 31)
    assert max(map(len, tree.topology.children)) <= bounds.get("width", 8)


def test_a_static_topology_is_filled_from_the_merged_tree():
    topology = from_paths([[0], [1], [0, 0]])
    parts = [FixedDrafter([[3], [3, 4]], estimate=0.5), FixedDrafter([[5], [6]], estimate=0.4)]

    tree = propose(begun(MergedDrafter(parts), [1], 2), topology=topology)

    assert (tree.topology, tree.token_list) == (topology, (2, 3, 5, 4))
    assert sources(tree) == {(3,): 0b01, (5,): 0b10, (3, 4): 0b01}


def test_parts_are_asked_for_free_trees_where_the_shape_is_static():
    part = FixedDrafter([[3]])
    session = begun(MergedDrafter([part, PlainDrafter()]), [1], 2)

    propose(session, budget=1, topology=from_paths([[0]]))

    assert part.session.limits == [limits(budget=1)]


def test_rows_leave_every_part():
    part = FixedDrafter([[3]])
    drafter = MergedDrafter([part, LookupDrafter()])
    session = drafter.begin([torch.tensor([token, 9, token]) for token in (1, 2, 4)], context(3))
    session.observe([prefilled(9)] * 3)
    session.observe([followed(tree, [9]) for tree in session.propose([limits()] * 3)])

    session.keep([2, 0])

    assert part.session.rows == [2, 0]
    assert [set(children(tree)) for tree in session.propose([limits()] * 2)] == [
        {3, 4, 9},
        {1, 3, 9},
    ]


def test_taps_are_those_of_all_parts():
    parts = [FixedDrafter([], taps=(4, 1)), FixedDrafter([], taps=(1, 2)), LookupDrafter()]

    assert MergedDrafter(parts).taps == (1, 2, 4)


def test_draws_are_those_that_every_part_offers():
    parts = [LookupDrafter(), FixedDrafter([], draws=("iid", "topk"))]

    assert MergedDrafter(parts).draws == ("topk",)


def test_parts_that_can_only_sample_are_refused():
    with pytest.raises(
        DrafterError, match=r"they offer: LookupDrafter shared, topk; FixedDrafter iid"
    ):
        MergedDrafter([LookupDrafter(), FixedDrafter([], draws=("iid",))])


def test_a_merge_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="at least one drafter"):
        MergedDrafter([])
