"""The shared noise integrated out: the closed form against the noise itself."""

import math
import random
from fractions import Fraction

import pytest
import torch

from tests.verify.tables import SHAPES, fractions, random_law, random_tables
from treespec.sampling import RowNoise
from treespec.scores import NodeScores
from treespec.tree import TokenTree
from treespec.verify import Gumbel
from treespec.verify.exact import acceptance, every_emission
from treespec.verify.laws import TableLaw
from treespec.verify.races import Choice, race

pytestmark = pytest.mark.usefixtures("plain_calls")


@pytest.mark.parametrize("candidates", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_its_rank_the_choice_has_the_targets_law(seed: int, candidates: int):
    generator = random.Random(seed)
    p, q = random_law(generator, 3, zeros=0.2), random_law(generator, 3, zeros=0.2)
    law = race(TableLaw(p), TableLaw(q), candidates)

    totals = [sum(w for choice, w in law.items() if choice.token == token) for token in range(3)]
    assert p == totals
    assert all(choice.rank is None or choice.rank < candidates for choice in law)


def test_equal_laws_rank_the_choice_first():
    p = fractions("1/2 1/3 1/6")

    assert {Choice(x, 0): p[x] for x in range(3)} == race(TableLaw(p), TableLaw(p), 2)


def test_as_many_candidates_as_tokens_leave_nothing_unranked():
    p, q = fractions("1/2 1/3 1/6"), fractions("1/6 1/2 1/3")

    assert None not in {choice.rank for choice in race(TableLaw(p), TableLaw(q), 3)}


def test_one_candidate_is_accepted_with_the_known_formula():
    """Sum over i of 1 / sum over j of max(p_j / p_i, q_j / q_i)."""
    p, q = fractions("1/2 3/10 1/5"), fractions("1/5 3/10 1/2")
    expected = sum(1 / sum(max(p[j] / p[i], q[j] / q[i]) for j in range(3)) for i in range(3))

    assert expected == acceptance("gumbel", p, q, candidates=1, draw="shared")


@pytest.mark.parametrize("candidates", [1, 2])
def test_the_noise_of_decoding_has_the_frequencies_of_the_closed_form(candidates: int):
    """2,000 seeds: six standard deviations are 0.067 at most."""
    p, q = fractions("1/2 3/10 1/5 0"), fractions("1/5 3/10 1/4 1/4")
    log_p, log_q = (torch.tensor([float(w) for w in law]).log() for law in (p, q))
    counts: dict[Choice, int] = {}
    for seed in range(2000):
        noise = RowNoise(seed).row(6, 4, torch.device("cpu"))
        ranked = (log_q + noise).argsort(descending=True)[:candidates].tolist()
        token = int((log_p + noise).argmax())
        choice = Choice(token, ranked.index(token) if token in ranked else None)
        counts[choice] = counts.get(choice, 0) + 1
    law = race(TableLaw(p), TableLaw(q), candidates)

    found = {choice: count / 2000 for choice, count in counts.items()}
    assert found == pytest.approx({c: float(w) for c, w in law.items()}, abs=0.067)


def test_walks_of_the_shipped_rule_have_the_frequencies_of_the_closed_form():
    """600 seeds on a tree of depth 2: six standard deviations are 0.123 at most."""
    p_table, q_table = random_tables(3, 2, 2)
    topology = SHAPES["root2_first_deep"]
    expected: dict[tuple, float] = {}
    for emission in every_emission("gumbel", p_table, q_table, topology, draw="shared"):
        key = (emission.tokens, emission.num_accepted)
        expected[key] = expected.get(key, 0) + float(emission.probability)
    found: dict[tuple, float] = {}
    for seed in range(600):
        noise = RowNoise(seed)
        rows = [noise.row(depth, 2, torch.device("cpu")).tolist() for depth in range(3)]
        children = ranked(q_table[()], rows[1])
        tokens = [0, *children, ranked(q_table[(children[0],)], rows[2])[0]]
        tree = TokenTree.from_lists(topology.parent_list, tokens, draw="shared")
        prefixes = [(), (tokens[1],), (tokens[2],), (tokens[1], tokens[3])]
        scores = torch.tensor([[math.log(w) for w in p_table[prefix]] for prefix in prefixes])
        (walked,) = Gumbel().accept([tree], [NodeScores.of_all(scores)], [noise], [0])
        emitted = (*(tokens[node] for node in walked.path[1:]), walked.next_token)
        key = (emitted, walked.num_accepted)
        found[key] = found.get(key, 0) + 1 / 600

    assert found == pytest.approx(expected, abs=0.123)


def ranked(law: list[Fraction], noise: list[float]) -> list[int]:
    """Tokens by perturbed log-probability, best first."""
    return sorted(range(len(law)), key=lambda token: -(math.log(law[token]) + noise[token]))
