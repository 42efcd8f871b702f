"""What pages show is what the library says: printed output, the picture, the guide's drafters."""

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from tests.meta.project import ROOT
from tests.meta.test_documents import model_names, python_blocks
from tests.meta.tiny_model import save_tiny_model
from treespec import BestFirst, StaticTree, TreeDecoder

GUIDE = ROOT / "docs/guides/write_your_own_drafter.md"
VOCABULARY = 12


def shown_outputs(page: Path) -> list[str]:
    """The blocks of a page that show what the block before them prints."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"^```\n\n```text\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def run_page(page: Path, folder: Path) -> dict[str, Any]:
    """Run a page's blocks as one program in `folder`, and return its names."""
    program = python_blocks(page)
    for name in model_names(program):
        save_tiny_model(folder / name)
    script = folder / "page.py"
    script.write_text(program, encoding="utf-8")
    return runpy.run_path(str(script), run_name="__main__")


@pytest.mark.parametrize("name", ["how_a_step_works", "math/shared_noise"])
def test_page_prints_what_it_shows(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = ROOT / f"docs/{name}.md"
    run_page(page, tmp_path)
    printed = capsys.readouterr().out
    outputs = shown_outputs(page)
    assert outputs
    assert [output for output in outputs if output not in printed] == []


def test_picture_is_the_one_that_its_script_draws():
    folder = ROOT / "docs/pictures"
    draw: Callable[[], str] = runpy.run_path(str(folder / "draw_step.py"))["draw"]
    assert draw() == (folder / "step.svg").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names that the guide's program defines."""
    folder = tmp_path_factory.mktemp("guide")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return run_page(GUIDE, folder)


@pytest.fixture(scope="module")
def markov() -> PreTrainedModel:
    """A target whose next token depends on the last one alone: attention and MLP are silent."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
    return model


@pytest.mark.parametrize("drafter", ["FollowerDrafter", "NoisyDrafter"])
@pytest.mark.parametrize("tree", [BestFirst(budget=9, depth=4), StaticTree([[0], [1], [0, 0]])])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafter_of_the_guide_leaves_the_text_of_a_ragged_batch_as_it_is(
    guide: dict[str, Any],
    markov: PreTrainedModel,
    drafter: str,
    tree: BestFirst | StaticTree,
    temperature: float,
):
    block = torch.arange(3 * 8).reshape(3, 8) % VOCABULARY
    mask = torch.ones_like(block)
    mask[0, :5] = mask[2, :2] = 0
    sampled = {"do_sample": True, "temperature": temperature} if temperature else {}
    settings = {"attention_mask": mask, "max_new_tokens": 16, "seed": 5, "eos_token_id": 4}
    settings |= sampled or {"do_sample": False}
    plain = TreeDecoder(markov, None).generate(block, pad_token_id=0, **settings)
    output = TreeDecoder(markov, guide[drafter](), tree=tree).generate(
        block, pad_token_id=0, **settings
    )
    assert torch.equal(output.sequences, plain.sequences)
    assert sum(stats.accepted for stats in output.stats) > 0


def test_noise_of_the_right_position_makes_the_guide_s_drafter_guess_better(
    guide: dict[str, Any], markov: PreTrainedModel
):
    settings = {"do_sample": True, "max_new_tokens": 200, "seed": 1}
    learnt = TreeDecoder(markov, None).generate(torch.tensor([[0]]), **settings).sequences
    rates = {
        name: TreeDecoder(markov, guide[name](), tree=BestFirst(budget=1))
        .generate(learnt, do_sample=True, max_new_tokens=100, seed=2)
        .stats[0]
        .acceptance_rate
        for name in ("FollowerDrafter", "NoisyDrafter")
    }
    assert rates["NoisyDrafter"] > rates["FollowerDrafter"] + 0.2
