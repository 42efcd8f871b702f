"""What the decoder refuses, and that it says by name what it refuses."""

import pytest
import torch

from tests.families import VOCAB, build, family
from tests.rig import random_prompts
from treespec import BestFirst, LookupDrafter, ModelDrafter, StaticTree, TreeDecoder
from treespec.errors import ConfigError, DrafterError, UnsupportedOptionError
from treespec.tree.token_tree import TokenTree

PROMPTS = random_prompts((7, 3, 5, 9), VOCAB)


@pytest.fixture(scope="module")
def target():
    return build(family("llama"), "sdpa")


@pytest.fixture(scope="module")
def decoder(target):
    return TreeDecoder(target)


def generate(decoder: TreeDecoder, **options: object):
    arguments = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0} | options
    return decoder.generate(PROMPTS.input_ids, attention_mask=PROMPTS.attention_mask, **arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "num_beams=2 is not supported"),
        ({"guidance_scale": 2.0}, r"guidance_scale=2\.0 is not supported"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3 .*LookupDrafter"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions=True"),
        ({"use_cache": False}, "use_cache=False is not supported .*needs a cache"),
        ({"cache_implementation": "static"}, "cache_implementation='static'"),
        ({"inputs_embeds": torch.zeros(1, 2, 3)}, "inputs_embeds='Tensor' .*give input_ids"),
        ({"position_ids": torch.zeros(1, 2)}, "position_ids='Tensor'"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(decoder, options, message):
    with pytest.raises(UnsupportedOptionError, match=message):
        generate(decoder, **options)


def test_an_unknown_argument_is_refused_by_name(decoder):
    with pytest.raises(ValueError, match="max_new_token"):
        generate(decoder, max_new_token=3)


def test_stop_strings_without_a_tokenizer_are_refused(decoder):
    with pytest.raises(ConfigError, match="stop_strings needs the target's tokenizer"):
        generate(decoder, stop_strings="x")


def test_a_prompt_without_tokens_is_refused(decoder):
    with pytest.raises(ConfigError, match="row 1 of the prompt has no token"):
        decoder.generate(
            torch.ones(2, 3, dtype=torch.int64),
            attention_mask=torch.tensor([[1, 1, 1], [0, 0, 0]]),
            max_new_tokens=2,
        )


def test_no_prompt_is_refused(decoder):
    with pytest.raises(ConfigError, match="input_ids is missing"):
        decoder.generate(max_new_tokens=2)


class Rogue:
    """A drafter that breaks the protocol in one way."""

    taps: tuple[int, ...] = ()
    draws: tuple[str, ...] = ("topk",)

    def __init__(self, tree) -> None:
        self.tree = tree

    def begin(self, prompts, context):
        return self

    def propose(self, limits):
        return [self.tree(root) for root in self.roots]

    def observe(self, rounds):
        self.roots = [one.acceptance.next_token for one in rounds]

    def keep(self, rows):
        self.roots = [self.roots[row] for row in rows]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (lambda root: TokenTree.root_only((root + 1) % VOCAB), "the tree's root is token"),
        (lambda root: TokenTree.from_lists([-1, 0, 0, 0], [root, 1, 2, 3]), "3 draft tokens and 1"),
        (lambda root: TokenTree.from_lists([-1, 0], [root, VOCAB]), "token id outside 0 to"),
        (lambda root: TokenTree.from_lists([-1, 0], [root, -1]), "token id outside 0 to"),
    ],
    ids=["root", "budget", "id above", "id below"],
)
def test_a_drafter_that_breaks_the_protocol_is_named_before_the_target_runs(target, tree, message):
    decoder = TreeDecoder(target, Rogue(tree), tree=BestFirst(budget=2, depth=2))

    with pytest.raises(DrafterError, match=message):
        generate(decoder)


@pytest.mark.usefixtures("_unchecked_types")
def test_something_that_is_no_drafter_is_refused_at_construction(target):
    with pytest.raises(DrafterError, match="wrap a model with ModelDrafter"):
        TreeDecoder(target, target)


def test_a_rule_that_the_drafter_cannot_serve_is_refused_at_construction(target):
    with pytest.raises(DrafterError, match="KSeq is exact for the draws iid_paths, iid"):
        TreeDecoder(target, LookupDrafter(), verifier="kseq")


@pytest.mark.parametrize("tree", [BestFirst(budget=4, depth=2), StaticTree([[0], [1], [0, 0]])])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_rule_for_chains_is_refused_with_a_tree_before_the_target_runs(target, rule, tree):
    decoder = TreeDecoder(target, ModelDrafter(target), tree=tree, verifier=rule)
    decoder.target.prefill = None  # anything that ran the target would fail otherwise

    with pytest.raises(DrafterError, match=f"the rule '{rule}' takes a chain under draw 'iid'"):
        generate(decoder, do_sample=True)


def test_a_rule_for_chains_takes_any_tree_when_greedy(target):
    decoder = TreeDecoder(target, ModelDrafter(target), verifier="token")

    greedy = generate(decoder).sequences

    assert torch.equal(greedy, generate(TreeDecoder(target)).sequences)
