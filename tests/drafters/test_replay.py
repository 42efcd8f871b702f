import random

import pytest
import torch

from benchmarks.linear import PromptLookupChain
from benchmarks.recordings import Recording
from benchmarks.replay import Replayed, follow, logits_row, replay, summary, with_compact_ids
from treespec.drafters.lookup import LookupDrafter
from treespec.drafters.merged import MergedDrafter
from treespec.drafters.plain import PlainDrafter
from treespec.drafters.recycle import RecycleDrafter
from treespec.tree.shapes import BestFirst, Chain
from treespec.tree.token_tree import TokenTree

VOCAB = 60


WEIGHTS = (0.7, 0.15, 0.1, 0.05)


def recording_of(prompt: list[int], answer: list[int], successors: list[list[int]]) -> Recording:
    """A text of which the target knows the usual successors of each token, and the right one."""
    text = [*prompt, *answer]
    right = [*text[1:], 0]
    ranked = [
        [token, *(other for other in successors[last] if other != token)][: len(WEIGHTS)]
        for last, token in zip(text, right, strict=True)
    ]
    return Recording(
        category="made up",
        prompt=torch.tensor(prompt),
        answer=torch.tensor(answer),
        top_ids=torch.tensor(ranked),
        top_log_probs=torch.tensor(WEIGHTS).log().expand(len(text), -1),
    )


def made_up(seed: int, *, prompt: int = 80, answer: int = 60, copied: bool = False) -> Recording:
    """A text in which each token has a few successors, one of them usual.

    If it is copied, the answer repeats the prompt, with a word changed now and then.
    """
    rng = random.Random(seed)
    successors = [rng.sample(range(VOCAB), len(WEIGHTS)) for _ in range(VOCAB)]
    text = [0]
    while len(text) < prompt + answer:
        text += rng.choices(successors[text[-1]], WEIGHTS)
    if copied:
        text[prompt:] = [
            rng.randrange(VOCAB) if place % 20 == 19 else token
            for place, token in enumerate(text[:answer])
        ]
    return recording_of(text[:prompt], text[prompt:], successors)


RECORDINGS = [made_up(seed, copied=seed % 2 == 0) for seed in range(8)]


def acceptance_length(drafter, shape) -> float:
    """Mean over all texts."""
    results = [replay(drafter, each, shape, vocab_size=VOCAB) for each in RECORDINGS]
    return sum(result.acceptance_length for result in results) / len(results)


def merged() -> MergedDrafter:
    """The training-free default."""
    return MergedDrafter([LookupDrafter(), RecycleDrafter()])


def test_a_recording_survives_its_file(tmp_path):
    recording = made_up(0)

    recording.save(tmp_path / "one.npz")

    loaded = Recording.load(tmp_path / "one.npz")
    assert loaded.category == recording.category
    for name in ("prompt", "answer", "top_ids", "top_log_probs"):
        torch.testing.assert_close(getattr(loaded, name), getattr(recording, name))


def test_compact_ids_are_a_renumbering_in_order():
    original = made_up(0)
    spread = Recording(
        category="spread",
        prompt=original.prompt * 1000 + 7,
        answer=original.answer * 1000 + 7,
        top_ids=original.top_ids * 1000 + 7,
        top_log_probs=original.top_log_probs,
    )

    (compact,), size = with_compact_ids([spread])

    used = torch.cat([original.prompt, original.answer, original.top_ids.reshape(-1)]).unique()
    assert size == len(used)
    torch.testing.assert_close(used[compact.answer], original.answer)
    torch.testing.assert_close(used[compact.top_ids], original.top_ids)


def test_a_row_of_logits_is_a_law_with_the_recorded_probabilities():
    recording = made_up(1)

    row = logits_row(recording, 5, 100)

    assert float(row.exp().sum()) == pytest.approx(1.0, abs=1e-4)
    torch.testing.assert_close(row[recording.top_ids[5]], recording.top_log_probs[5])


def test_the_longest_path_of_recorded_tokens_is_followed():
    tree = TokenTree.from_lists([-1, 0, 0, 2, 3], [9, 5, 6, 7, 5])

    assert follow(tree, [6, 7, 8]) == (0, 2, 3)


def test_plain_decoding_has_an_acceptance_length_of_one():
    result = replay(PlainDrafter(), made_up(0), Chain(4), vocab_size=VOCAB)

    assert (result.acceptance_length, result.drafted) == (1.0, 0)


def test_an_exact_copy_is_accepted_in_strides_of_the_budget():
    text = random.Random(0).sample(range(VOCAB), 50)
    recording = Recording(
        category="copy",
        prompt=torch.tensor([*text, 0, *text[:9]]),
        answer=torch.tensor(text[9:42]),
        top_ids=torch.zeros(93, 1, dtype=torch.int64),
        top_log_probs=torch.full((93, 1), 0.5).log(),
    )

    result = replay(LookupDrafter(), recording, Chain(15), vocab_size=VOCAB)

    assert (result.emitted, result.steps) == (33, 2)


def test_summary_weighs_categories_alike():
    results = [
        Replayed(category, steps, 1 + emitted, 0, 0.001, 0.002)
        for category, steps, emitted in [
            ("a", 10, 20),
            ("a", 10, 40),
            ("b", 10, 10),
            ("humaneval", 5, 5),
        ]
    ]

    table = summary(results)

    assert (table["a"], table["b"], table["others"]) == (3.0, 1.0, 2.0)
    assert table["propose_ms"] == pytest.approx(1e3 * 0.004 / 35)


def test_the_linear_baseline_proposes_what_transformers_does():
    recording = made_up(0, copied=True)

    result = replay(PromptLookupChain(10), recording, Chain(10), vocab_size=VOCAB)

    assert 1.5 < result.acceptance_length < 11


@pytest.mark.parametrize("drafter", [LookupDrafter, RecycleDrafter, merged])
def test_a_best_first_tree_accepts_at_least_as_much_as_a_chain(drafter):
    tree = acceptance_length(drafter(), BestFirst(budget=15, depth=15, width=8))

    assert tree >= acceptance_length(drafter(), Chain(15))


@pytest.mark.parametrize("budget", [7, 31])
def test_a_merged_tree_accepts_at_least_as_much_as_its_best_part(budget):
    shape = BestFirst(budget=budget, depth=budget, width=8)

    parts = [acceptance_length(drafter(), shape) for drafter in (LookupDrafter, RecycleDrafter)]

    assert acceptance_length(merged(), shape) >= max(parts) - 0.02


def test_lookup_trees_beat_prompt_lookup_at_equal_budget():
    tree = acceptance_length(LookupDrafter(), BestFirst(budget=24, depth=24, width=8))

    assert tree > acceptance_length(PromptLookupChain(24), Chain(24))
