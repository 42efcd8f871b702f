"""Settings of a training run: files, overrides, refusals."""

from pathlib import Path

import pytest

from treespec.errors import ConfigError
from treespec.training.config import TrainConfig

FILES = {
    "run.yaml": "family: hydra\nlr: 1e-3\nnum_heads: 3\nprefix: false\ngrad_clip: null\n",
    "run.toml": 'family = "hydra"\nlr = 0.001\nnum_heads = 3\nprefix = false\n',
    "run.json": '{"family": "hydra", "lr": 0.001, "num_heads": 3, "prefix": false}',
}


@pytest.mark.parametrize("name", FILES)
def test_settings_come_from_a_file_and_are_overridden_by_options(name: str, tmp_path: Path):
    path = tmp_path / name
    path.write_text(FILES[name])

    config = TrainConfig.from_file(path, {"num_heads": "5", "seed": 7})

    assert (config.family, config.lr, config.prefix) == ("hydra", 1e-3, False)
    assert (config.num_heads, config.seed) == (5, 7)
    assert (config.grad_clip is None) == (name == "run.yaml")


def test_settings_survive_json():
    config = TrainConfig(family="eagle3", taps=(0, 1), loss="mixed", draft_vocab_size=40)
    assert TrainConfig.from_values(config.as_dict()) == config


@pytest.mark.parametrize(
    ("family", "changes", "depth"),
    [
        ("medusa", {}, 4),
        ("hydra", {"num_heads": 2}, 2),
        ("eagle3", {}, 3),
        ("eagle", {"unroll_steps": 1}, 1),
    ],
)
def test_depth_is_the_number_of_heads_or_of_unrolled_steps(family, changes, depth):
    assert TrainConfig(family=family, **changes).depth == depth


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_head": 3}, "no setting num_head; did you mean num_heads"),
        ({"famil": "hydra"}, "did you mean family"),
        ({"family": "transformer"}, "family must be one of medusa, hydra, eagle, eagle3"),
        ({"precision": "float16"}, "precision must be one of float32, bfloat16"),
        ({"lr": "fast"}, "lr cannot be 'fast'; it is a number"),
        ({"lr": 0}, "lr must be above 0"),
        ({"epochs": 1.5}, "epochs cannot be 1.5; it is an integer"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"epochs": None}, "epochs is empty"),
        ({"seed": True}, "seed cannot be True"),
        ({"prefix": "perhaps", "family": "hydra"}, "prefix cannot be 'perhaps'; it is true or"),
        ({"taps": "1,x", "family": "eagle3"}, "taps cannot be '1,x'; it is a list of integers"),
        ({"head_decay": 0}, r"head_decay must be in \(0, 1\]"),
        ({"kl_weight": 2}, r"kl_weight must be in \[0, 1\]"),
        ({"grad_clip": 0}, "grad_clip must be above 0; leave it empty"),
        ({"max_length": 4096}, "max_length must be at most batch_tokens, 2048"),
        ({"taps": [1]}, "taps is for eagle3 heads, but family is medusa"),
        ({"num_heads": 3, "family": "eagle"}, "num_heads is for medusa and hydra heads"),
        ({"feature_weight": 1, "family": "eagle3"}, "feature_weight is for eagle heads"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_name(values, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig.from_values(values)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.yaml", "lr: [", "is damaged"),
        ("run.json", "[1]", "holds a list, not settings"),
        ("run.ini", "lr=1", "ends in .yaml, .json or .toml, not '.ini'"),
        ("gone.yaml", None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_holds_no_settings_is_refused(name, text, message, tmp_path: Path):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        TrainConfig.from_file(tmp_path / name, {})


def test_contradictions_between_runs_leave_out_what_teaches_nothing():
    first = TrainConfig(lr=1e-3, save_every=5)
    assert first.contradictions(TrainConfig(lr=2e-3, save_every=9, report_to="wandb")) == [
        "lr was 0.001 and is 0.002"
    ]
