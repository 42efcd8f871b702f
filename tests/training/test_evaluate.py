"""Evaluations: what they hold, how they are written, and the tree that follows from them."""

import json
from dataclasses import replace

import pytest
import torch

from tests.training.evaluation_cases import (
    NEW,
    greedy_passages,
    known_heads,
    llama,
    random_passages,
    real_heads,
    small_target,
)
from tests.training.training_cases import example, folder_of, ragged_examples
from treespec import BestFirst, Chain
from treespec.errors import CheckpointError, ConfigError, DataError
from treespec.training.calibrate import best_tree, load_tree, store_evaluation, store_tree
from treespec.training.evaluate import EvaluationOptions, evaluate_heads
from treespec.training.passages import passages_of
from treespec.training.results import DepthRates, Evaluation, TreeRates
from treespec.training.tables import decoded_text, markdown_of

FOUND = Evaluation(
    family="medusa",
    target="tiny",
    texts="three answers",
    passages=3,
    tokens=30,
    depths=(
        DepthRates(
            depth=1, positions=30, top1=0.5, top2=0.75, top5=0.8, top10=0.9, chained=0.5, reached=30
        ),
    ),
    table=((0.5, 0.25), (0.4, 0.3)),
    simulated=(
        TreeRates(name="chain of 2", steps=20, tokens=30, drafted=40, accepted_by_depth=(10,)),
    ),
)
DECODED = TreeRates(name="chain of 2", steps=10, tokens=16, drafted=20, accepted_by_depth=(6,))


def test_scripted_heads_have_the_figures_of_their_script():
    passages = random_passages([17, 11])  # twelve and six tokens to guess
    options = EvaluationOptions(depth=2, shapes={"chain": Chain(2)})

    found = evaluate_heads(llama(), known_heads(passages, lambda _: 1), passages, options)

    assert (found.passages, found.tokens) == (2, 18)
    assert [(one.top1, one.top2) for one in found.depths] == [(0, 1), (0, 1)]
    assert found.table[0][:3] == (0, 1, 0)
    assert [(one.name, one.steps, one.tokens) for one in found.simulated] == [("chain", 18, 18)]
    assert found.decoded is None


@pytest.mark.parametrize("kind", ["medusa", "3"])
def test_decoding_gives_what_was_simulated_along_the_targets_own_answers(kind):
    passages = greedy_passages()
    options = EvaluationOptions(
        decode=len(passages), shapes={"tree": BestFirst(budget=16, depth=3)}
    )

    found = evaluate_heads(small_target(), real_heads(kind), passages, options)

    assert found.decoded.tokens == len(passages) * (NEW - 1)
    assert found.decoded.steps < found.decoded.tokens  # something was accepted
    assert found.gap == 0
    assert found.decoded.accepted_by_depth == found.decoded_simulated.accepted_by_depth


def test_fewer_places_are_drawn_by_the_seed_alone():
    passages, heads = greedy_passages(), real_heads("medusa")

    def depths(**changes):
        options = EvaluationOptions(positions=5, shapes={"chain": Chain(1)}, **changes)
        return evaluate_heads(small_target(), heads, passages, options).depths

    assert depths() == depths(rows=3)
    assert depths()[0].positions == 5 * len(passages)
    assert depths() != depths(seed=1)


def test_data_of_another_target_are_refused():
    with pytest.raises(DataError, match="this target has"):
        evaluate_heads(llama(), real_heads("medusa"), folder_of(ragged_examples()))


@pytest.mark.parametrize("name", ["depth", "columns", "positions", "rows", "max_length"])
def test_options_out_of_range_are_named(name):
    with pytest.raises(ConfigError, match=f"{name} must be at least"):
        EvaluationOptions(**{name: 0})


def test_a_shape_to_decode_with_must_be_one_of_the_shapes():
    options = EvaluationOptions(shapes={"chain": Chain(2)}, decode=1, decode_shape="tree")
    with pytest.raises(ConfigError, match="decode_shape is 'tree', but the shapes are chain"):
        evaluate_heads(small_target(), real_heads("medusa"), greedy_passages(), options)


def test_every_run_of_supervised_tokens_is_a_passage():
    one = example(range(1, 13), (0, 3))
    one.supervised[6:10] = True
    one.supervised[11:12] = True  # a single token leaves nothing to guess

    found = passages_of([one], end_ids={10})

    assert [(p.tokens.tolist(), p.start, p.ended) for p in found] == [
        ([1, 2, 3], 1, False),
        (list(range(1, 11)), 6, True),
    ]
    assert [p.num_guessable for p in found] == [1, 3]
    assert torch.equal(found[1].prompt, torch.arange(1, 7))
    with pytest.raises(DataError, match="none of the 1 examples has an answer of two tokens"):
        passages_of([example([5, 6, 7], (2, 3))])


def test_an_evaluation_survives_its_json():
    for found in (FOUND, replace(FOUND, decoded=DECODED, decoded_simulated=FOUND.simulated[0])):
        assert Evaluation.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "this is no evaluation"),
        ("[]", "no evaluation of format 1"),
        (json.dumps({**json.loads(FOUND.to_json()), "format": 7}), "no evaluation of format 1"),
        (json.dumps({"format": 1}), "the evaluation is damaged: it lacks 'depths'"),
        (FOUND.to_json().replace('"steps"', '"stops"'), "damaged"),
        (FOUND.to_json().replace("0.25", '"many"'), "damaged"),
    ],
)
def test_what_is_no_evaluation_is_named(text, message):
    with pytest.raises(DataError, match=message):
        Evaluation.from_json(text)


def test_tables_say_what_was_found():
    found = replace(FOUND, decoded=DECODED, decoded_simulated=FOUND.simulated[0])

    assert decoded_text(FOUND) is None
    assert decoded_text(found) == (
        "Decoding with the chain of 2 gave 1.60 tokens a pass where 1.50 were simulated."
    )
    assert found.gap == pytest.approx(1.6 / 1.5 - 1)
    text = markdown_of(found)
    assert "| chain of 2 | 1.50 | 2.0 |" in text
    assert "| 1 | 30 | 0.500 | 0.750 | 0.800 | 0.900 | 0.500 |" in text
    assert found.acceptance() == {
        "three answers, chain of 2": 1.5,
        "three answers, chain of 2, decoded": 1.6,
    }


def test_the_best_tree_takes_the_likeliest_paths():
    tree = best_tree(FOUND, 3)

    # .5, then .25 as its sibling, then .5 * .4 below the first.
    assert sorted(tree.paths) == [(0,), (0, 0), (1,)]
    assert tree.acceptance_length == pytest.approx(1 + 0.5 + 0.25 + 0.2)
    with pytest.raises(DataError, match="none of the first 2 guesses was right"):
        best_tree(replace(FOUND, table=((0.0, 0.0),)), 3)


def test_a_stored_tree_is_found_again_and_heads_still_load(tmp_path):
    heads = real_heads("medusa")
    heads.save_pretrained(tmp_path)
    weights = (tmp_path / "model.safetensors").read_bytes()
    assert load_tree(tmp_path) is None

    for budget in (3, 2):
        store_tree(tmp_path, best_tree(FOUND, budget))
        assert load_tree(tmp_path) == best_tree(FOUND, budget)
    store_evaluation(tmp_path, FOUND)

    assert (tmp_path / "model.safetensors").read_bytes() == weights
    assert type(heads).from_pretrained(tmp_path, small_target()).max_depth == 3
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"budget": 3}, "it lacks 'paths'"),
        ({"paths": [], "budget": 3}, "paths must be lists"),
        ({"paths": [[0], ["a"]], "budget": 3}, r"the path \['a'\] is no list of child ranks"),
        ({"paths": [[0, 0, 0]], "budget": 1, "acceptance_length": 2, "texts": ""}, "is no tree"),
    ],
)
def test_a_damaged_tree_is_named(entry, message, tmp_path):
    real_heads("medusa").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "treespec_tree": entry}))

    with pytest.raises(CheckpointError, match=message):
        load_tree(tmp_path)


def test_trees_are_not_written_into_what_others_saved(tmp_path):
    with pytest.raises(CheckpointError, match="is no folder of saved heads"):
        store_tree(tmp_path, best_tree(FOUND, 2))
    (tmp_path / "config.json").write_text(json.dumps({"medusa_num_heads": 3}))
    with pytest.raises(CheckpointError, match="heads in another project's format"):
        store_evaluation(tmp_path, FOUND)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="is not JSON"):
        store_tree(tmp_path, best_tree(FOUND, 2))
