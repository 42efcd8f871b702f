"""What a caller gives `TreeDecoder`, made into what it works with, or refused."""

from types import EllipsisType

from treespec.drafters.base import Drafter
from treespec.drafters.lookup import LookupDrafter
from treespec.drafters.merged import MergedDrafter
from treespec.drafters.plain import PlainDrafter
from treespec.drafters.recycle import RecycleDrafter
from treespec.errors import ConfigError, DrafterError
from treespec.tree.shapes import AutoTree, BestFirst, StaticTree
from treespec.verify.acceptance import Verifier

TreeShape = BestFirst | StaticTree


def default_drafter() -> Drafter:
    """The drafter that needs neither a model nor training: lookup and recycling, merged."""
    return MergedDrafter([LookupDrafter(), RecycleDrafter()])


def as_drafter(drafter: Drafter | EllipsisType | None) -> Drafter:
    """The drafter: the default one if left out, one that drafts nothing for None.

    Raises:
        DrafterError: if it is none.
    """
    if drafter is ...:
        return default_drafter()
    if drafter is None:
        return PlainDrafter()
    if not isinstance(drafter, Drafter):
        raise DrafterError(
            f"the drafter is a {type(drafter).__name__}, which lacks taps, draws or begin; see "
            f"the guide "
            "on writing a drafter, or wrap a model with ModelDrafter(model)"
        )
    return drafter


def as_shape(tree: TreeShape | None, draw: str) -> TreeShape:
    """The shape of trees, `AutoTree()` if left out.

    Raises:
        ConfigError: if it is none.
    """
    if tree is None:
        tree = AutoTree()
    if isinstance(tree, AutoTree) and draw not in ("shared", "topk"):
        return tree.fixed()
    if not isinstance(tree, BestFirst | StaticTree):
        raise ConfigError(
            f"tree is a {type(tree).__name__}; give AutoTree(), BestFirst(...), Chain(k) or "
            "StaticTree(paths)"
        )
    return tree


def common_draw(verifier: Verifier, drafter: Drafter) -> str:
    """The verifier's first draw that the drafter offers."""
    for draw in verifier.draws:
        if draw in drafter.draws:
            return draw
    raise DrafterError(
        f"{type(verifier).__name__} is exact for the draws {', '.join(verifier.draws)}, but "
        f"{type(drafter).__name__} offers {', '.join(drafter.draws)}; choose another rule or "
        f"drafter"
    )
