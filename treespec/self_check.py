"""A test that any target can be put to: one random tree against plain forwards of its paths."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from treespec.errors import SelfCheckError
from treespec.target import Target
from treespec.tree.token_tree import TokenTree

# Two levels of branching, leaves at different depths, and a path that is never the first child.
_PARENTS = (-1, 0, 0, 1, 2, 2, 5, 6)
_PROMPT_LENGTH = 12
_LONGEST_WINDOW = 64
# Largest deviation accepted, in standard deviations of the logits. Low precision is judged by the
# mean, because single logits of a tree forward and a plain one may differ by several ulps.
_MOST_IN_FLOAT32 = 1e-3
_MEAN_IN_LOW_PRECISION = 0.1

_checked: WeakKeyDictionary[PreTrainedModel, set[str]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """How far the tree forward was from plain forwards.

    Attributes:
        max_deviation: largest difference of a logit, in standard deviations of the logits.
        mean_deviation: mean difference, in the same unit.
    """

    max_deviation: float
    mean_deviation: float


@torch.no_grad()
def self_check(target: Target | PreTrainedModel) -> SelfCheck:
    """Score one random tree and compare every node's logits with a plain forward of its path.

    Three short forwards; the prompt is longer than the attention window where the window is short.

    Raises:
        SelfCheckError: if they differ by more than the precision explains, naming the node.
    """
    target = target if isinstance(target, Target) else Target(target)
    generator = torch.Generator().manual_seed(0)
    reach = [limit for kind in target.support.kinds for limit in (kind.window, kind.chunk) if limit]
    length = _PROMPT_LENGTH + max((limit for limit in reach if limit <= _LONGEST_WINDOW), default=0)
    if target.max_positions is not None:
        length = max(min(length, target.max_positions - len(_PARENTS)), 1)
    tokens = torch.randint(target.vocab_size, (length + len(_PARENTS),), generator=generator)
    prompt, tree = tokens[:length], TokenTree.from_lists(_PARENTS, tokens[length:].tolist())
    cache = target.new_cache(1)
    target.prefill(cache, [prompt])
    scored = target.score(cache, [tree])[0].logits.float()
    plain = _plain_logits(target, prompt, tree).to(scored.device)
    difference = (scored - plain).abs() / plain.std().clamp_min(1e-6)
    result = SelfCheck(difference.max().item(), difference.mean().item())
    exact = target.model.dtype in (torch.float32, torch.float64)
    wrong = (
        result.max_deviation > _MOST_IN_FLOAT32
        if exact
        else result.mean_deviation > _MEAN_IN_LOW_PRECISION
    )
    if wrong or not torch.isfinite(difference).all():
        raise _disagreement(target, difference)
    return result


def _plain_logits(target: Target, prompt: Tensor, tree: TokenTree) -> Float[Tensor, "N V"]:
    """Logits of every node from forwards without cache or mask, one row per leaf."""
    topology = tree.topology
    leaves = [node for node, children in enumerate(topology.children) if not children]
    longest = topology.max_depth + 1
    rows = [
        torch.cat(
            [
                prompt,
                torch.tensor(
                    tree.path_tokens(leaf) + (0,) * (longest - 1 - topology.depth_list[leaf])
                ),
            ]
        )
        for leaf in leaves
    ]
    logits = target.model(
        input_ids=torch.stack(rows).to(target.device), use_cache=False
    ).logits.float()
    nodes = []
    for node, depth in enumerate(topology.depth_list):
        row = next(i for i, leaf in enumerate(leaves) if bool(topology.ancestor_mask[leaf, node]))
        nodes.append(logits[row, prompt.shape[0] + depth])
    return torch.stack(nodes)


def _disagreement(target: Target, difference: Float[Tensor, "N V"]) -> SelfCheckError:
    node = int(difference.amax(dim=-1).argmax())
    advice = (
        "the model is in training mode: call model.eval()"
        if target.model.training
        else "its attention does not follow the mask or the position_ids it is given; try another "
        "attn_implementation, or report the model"
    )
    return SelfCheckError(
        f"{target.support.model_class} with {target.support.implementation} attention gives node "
        f"{node} of a "
        f"random tree other logits than a plain forward of its path (by "
        f"{difference.max().item():.2g} standard "
        f"deviations): {advice}"
    )


def self_check_once(target: Target) -> None:
    """`self_check`, skipped for a model and attention implementation that have passed it.

    Raises:
        SelfCheckError: as `self_check` does.
    """
    passed = _checked.setdefault(target.model, set())
    if target.support.implementation not in passed:
        self_check(target)
        passed.add(target.support.implementation)
