"""Enumeration: every way that random decisions can fall, once, with its probability."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.verify.tables import SHAPES, SameEverywhere, fractions
from treespec.errors import ConfigError, DrafterError
from treespec.sampling import RowNoise
from treespec.verify import Acceptance
from treespec.verify.enumeration import every_draft, every_outcome, law_lookup
from treespec.verify.exact import acceptance, optimal_acceptance, output_law
from treespec.verify.laws import TableLaw


def drafts(law: str, shape: str, draw: str) -> dict[tuple[int, ...], Fraction]:
    """Drafted tokens, root left out, and their probabilities."""
    lookup = law_lookup(SameEverywhere(fractions(law)), "q_table")
    return {
        draft.tree.token_list[1:]: draft.probability
        for draft in every_draft(lookup, SHAPES[shape], draw)
    }


def test_decisions_that_depend_on_earlier_ones_are_all_followed():
    def toss(randomness) -> str:
        if randomness.accept(Fraction(1, 3)):
            return "heads"
        return "ab"[randomness.choose(TableLaw(fractions("1/4 3/4")))]

    expected = {"heads": Fraction(1, 3), "a": Fraction(1, 6), "b": Fraction(1, 2)}
    assert expected == dict(every_outcome(toss))


def test_certain_decisions_do_not_branch():
    def certain(randomness) -> tuple[bool, bool, int]:
        return randomness.accept(0), randomness.accept(2), randomness.choose(TableLaw([0, 5]))

    assert list(every_outcome(certain)) == [((False, True, 1), 1)]


def test_independent_siblings_may_be_equal():
    found = drafts("1/3 2/3", "bin1", "iid")

    assert {tokens: str(chance) for tokens, chance in found.items()} == {
        (0, 0): "1/9",
        (0, 1): "2/9",
        (1, 0): "2/9",
        (1, 1): "4/9",
    }


def test_siblings_without_replacement_are_drawn_from_what_is_left():
    found = drafts("1/6 1/3 1/2", "bin1", "swor")

    assert Fraction(1, 6) * Fraction(1, 3) / Fraction(5, 6) == found[(0, 1)]
    assert sum(found.values()) == 1
    assert all(one != other for one, other in found)


def test_a_drafter_that_runs_out_of_tokens_leaves_nodes_and_what_hangs_on_them_out():
    lookup = law_lookup(SameEverywhere(fractions("0 1")), "q_table")
    (draft,) = every_draft(lookup, SHAPES["root2_second_deep"], "swor")

    assert draft.tree.topology.parent_list == (-1, 0)
    assert draft.tree.token_list == (0, 1)


def test_most_probable_candidates_stand_in_order_lowest_id_first_on_ties():
    assert drafts("1/5 2/5 2/5", "bin1", "topk") == {(1, 2): 1}


def test_a_missing_law_is_named():
    with pytest.raises(ConfigError, match=r"p_table has no law for the prefix \(1,\)"):
        output_law("token", {(): [0, 1]}, {(): [0, 1]}, SHAPES["chain1"], draw="iid")


def test_a_law_that_does_not_add_up_is_named():
    with pytest.raises(ConfigError, match=r"q_table\[\(\)\] is \['1/2', '1/3'\], adding up to 5/6"):
        drafts("1/2 1/3", "chain1", "iid")


def test_floats_may_miss_one_by_rounding():
    law = [0.1] * 10

    assert acceptance("token", law, law, candidates=1, draw="iid") == pytest.approx(1.0)


@pytest.mark.parametrize("kind", [torch.tensor, np.array], ids=["tensor", "array"])
def test_laws_may_be_arrays_of_floats(kind):
    law = kind([0.5, 0.25, 0.25], dtype=(torch if kind is torch.tensor else np).float32)

    assert acceptance("rejection", law, law, candidates=2, draw="iid") == 1.0
    assert optimal_acceptance(law, law, candidates=2, draw="swor") == 1.0


def test_paths_cannot_fill_a_shape_that_branches_below_the_root():
    with pytest.raises(ConfigError, match="paths that part at the root only"):
        output_law("gumbel", {}, {}, SHAPES["ragged"], draw="iid_paths")


def test_only_the_default_rule_can_be_asked_about_shared_noise():
    with pytest.raises(DrafterError, match="'rejection' is not exact for siblings drawn 'shared'"):
        acceptance("rejection", [1.0], [1.0], candidates=1, draw="shared")


def test_a_rule_is_refused_what_it_would_refuse_in_decoding():
    with pytest.raises(DrafterError, match="the rule 'token' takes a chain"):
        acceptance("token", fractions("1/2 1/2"), fractions("1/2 1/2"), candidates=2, draw="iid")


class Opaque:
    """A verifier that does not say what it decides at random."""

    lossless = True
    draws = ("topk",)

    def accept(self, trees, scores, noises: list[RowNoise], root_positions) -> list[Acceptance]:
        raise NotImplementedError


def test_a_verifier_that_is_no_rule_cannot_be_enumerated():
    with pytest.raises(DrafterError, match="Opaque cannot be enumerated"):
        acceptance(Opaque(), [1.0], [1.0], candidates=1, draw="topk")
