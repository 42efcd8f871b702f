import math

import pytest
from hypothesis import given

from tests.strategies import topologies
from tests.tree.guessers import ROOT, grown, listed, nodes_of, same
from treespec.tree import Candidates, TreeTopology, from_paths, kary, to_paths


class TestStaticTopology:
    @given(topologies())
    def test_enough_candidates_fill_it_whole(self, topology):
        tree = grown(same(range(20), [-0.5 - rank for rank in range(20)]), topology=topology)

        # nodes are numbered level by level, whatever order the topology had
        assert sorted(to_paths(tree.topology)) == sorted(to_paths(topology))
        assert list(tree.token_list[1:]) == list(tree.topology.ranks[1:])

    def test_one_ordered_by_level_keeps_its_order(self):
        topology = from_paths([[0], [1], [0, 0], [1, 0], [1, 1]])

        assert grown(same([1, 2], [-1.0, -2.0]), topology=topology).topology == topology

    def test_a_place_without_candidate_is_left_out_with_its_descendants(self):
        words = {(): Candidates([1, 2], [-1.0, -2.0]), (1,): Candidates([3], [-0.5])}
        tree = grown(listed(words), topology=kary(3, 3))

        assert nodes_of(tree) == {(): 0.0, (1,): -1.0, (2,): -2.0, (1, 3): -1.5}

    @pytest.mark.parametrize("end", [-math.inf, math.nan])
    def test_an_impossible_candidate_leaves_its_place_and_later_ones_out(self, end):
        tree = grown(same([1, 2, 3], [-0.5, end, end]), topology=kary(3, 1))

        assert tree.token_list == (ROOT, 1)

    def test_nodes_are_filled_however_unlikely_they_are(self):
        tree = grown(same([1, 2], [-0.1, -99.0]), budget=2, topology=kary(2, 1))

        assert tree.token_list == (ROOT, 1, 2)

    def test_only_inner_nodes_are_expanded(self):
        guesser = same([1, 2], [-0.5, -1.0])
        grown(guesser, topology=from_paths([[0], [1], [1, 0]]))

        assert guesser.frontiers == [[[0]], [[2]]]

    def test_the_root_alone_asks_nothing(self):
        guesser = same([1], [-0.5])
        tree = grown(guesser, topology=TreeTopology([-1]))

        assert (tree.token_list, guesser.frontiers) == ((ROOT,), [])
