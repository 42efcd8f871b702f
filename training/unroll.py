"""What heads of each family say of every depth, all positions of a text at once.

The tokens between a position and its guess are those of the text (teacher forcing): a guess
matters only where all before it were right. EAGLE heads are besides fed their own outputs, as they
are while drafting.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import DynamicCache

from treespec.errors import ConfigError
from treespec.heads.base import DraftHeads
from treespec.heads.eagle import EagleHead
from treespec.heads.hydra import HydraHeads
from treespec.heads.medusa import MedusaHeads
from treespec.training.features import Features
from treespec.training.labels import ahead
from treespec.training.losses import Guess
from treespec.training.packing import Batch


@dataclass(frozen=True, slots=True)
class Unrolled:
    """One depth.

    Attributes:
        guess: what the heads say where it counts, row by row, position by position.
        predicted: EAGLE: the hidden state of position t + 1 + depth that the head predicts at
            position t; None for other families.
    """

    guess: Guess
    predicted: Float[Tensor, "B L H"] | None = None


def unroll(
    heads: DraftHeads, batch: Batch, features: Features, places: Sequence[Bool[Tensor, "B L"]]
) -> Iterator[Unrolled]:
    """What the heads say, depth by depth.

    Args:
        heads: of any family.
        batch: tokens, on the heads' device.
        features: the target's hidden states there.
        places: of every depth the positions where a guess counts; the token that it is about is
            inside the row.

    Raises:
        ConfigError: for heads of a family that cannot be trained.
    """
    match heads:
        case MedusaHeads():
            return _medusa(heads, features, places)
        case HydraHeads():
            return _hydra(heads, batch, features, places)
        case EagleHead():
            return _eagle(heads, batch, features, places)
    raise ConfigError(f"{type(heads).__name__} cannot be trained; Medusa, Hydra and EAGLE can")


def _medusa(
    heads: MedusaHeads, features: Features, places: Sequence[Bool[Tensor, "B L"]]
) -> Iterator[Unrolled]:
    """Every head looks at the hidden state alone."""
    for index, where in enumerate(places):
        head, states = heads.get_submodule(str(index)), features.inputs[where]
        if heads.config.lm_head == "each":
            yield Unrolled(Guess(states, head, tuple(head.parameters())))
        else:
            yield Unrolled(Guess(head(states), heads.borrowed.logits))


def _hydra(
    heads: HydraHeads, batch: Batch, features: Features, places: Sequence[Bool[Tensor, "B L"]]
) -> Iterator[Unrolled]:
    """Head i reads a state and the embeddings of the i + 1 tokens behind it."""
    states, embedded = heads.states(features.inputs), heads.embed(batch.tokens)
    for index, where in enumerate(places):
        rows, positions = where.nonzero(as_tuple=True)
        path = [embedded[rows, positions + 1 + step] for step in range(index + 1)]
        inputs = torch.cat([states[rows, positions], *path], dim=-1)
        head = heads.heads[index]
        if heads.config.lm_head == "each":
            yield Unrolled(Guess(inputs, head, tuple(head.parameters())))
        else:
            yield Unrolled(Guess(head(inputs), heads.borrowed.logits))


def _eagle(
    head: EagleHead, batch: Batch, features: Features, places: Sequence[Bool[Tensor, "B L"]]
) -> Iterator[Unrolled]:
    """Training-time test: step s continues the output of step s - 1 at the same index.

    It stands for a node at depth s below the root that its index begins with: it sees the committed
    pairs up to there, its ancestors, which are the earlier steps of its own index, and itself.
    """
    length = batch.tokens.shape[1]
    positions = torch.arange(length, device=batch.tokens.device).expand(len(batch.tokens), -1)
    parameters = _head_parameters(head)
    cache = DynamicCache() if len(places) > 1 else None
    hidden = head.fuse(features.inputs)
    for step, where in enumerate(places):
        mask = step_mask(length, step, batch.tokens.device) if step else None
        embeddings = head.embed(ahead(batch.tokens, 1 + step))
        attend = head.attend(positions + step, mask=mask, cache=cache)
        outputs = head.step(hidden, embeddings, attend)
        hidden = head.feedback(outputs)
        yield Unrolled(Guess(outputs[where], head.logits, parameters), hidden)


def step_mask(length: int, step: int, device: torch.device) -> Bool[Tensor, "1 1 L K"]:
    """Who sees whom in a later step: the keys are those of all steps so far, the first ones first.

    Args:
        length: L, positions.
        step: from 1; there are (step + 1) times L keys.
        device: of the mask.
    """
    past = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    own = torch.eye(length, dtype=torch.bool, device=device)
    return torch.cat([past, own.repeat(1, step)], dim=-1)[None, None]


def _head_parameters(head: EagleHead) -> tuple[Tensor, ...]:
    """Weights between an output and its logits."""
    modules: list[nn.Module] = [head.norm] if head.config.version == 3 else []
    if head.config.lm_head == "own":
        modules.append(head.lm_head)
    return tuple(parameter for module in modules for parameter in module.parameters())
