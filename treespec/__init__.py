"""Tree-attention speculative decoding for any transformers causal LM, without changing a token."""

from treespec.decoder import TreeDecoder
from treespec.drafters.base import DraftContext, Drafter, DraftSession, Round
from treespec.drafters.lookup import LookupDrafter
from treespec.drafters.merged import MergedDrafter
from treespec.drafters.model import ModelDrafter
from treespec.drafters.recycle import RecycleDrafter
from treespec.errors import (
    ConfigError,
    DownloadError,
    DrafterError,
    InvalidTreeError,
    SelfCheckError,
    TreespecError,
    UnsupportedOptionError,
    UnsupportedTargetError,
)
from treespec.hook import TreeGenerate, TreeOutput
from treespec.sampling import row_seed
from treespec.self_check import self_check
from treespec.settings import default_drafter
from treespec.stats import DecodeStats
from treespec.target import Target, TargetOutput
from treespec.tree.growth import Candidates, grow
from treespec.tree.shapes import AutoTree, BestFirst, Chain, StaticTree, TreeLimits
from treespec.tree.token_tree import TokenTree
from treespec.tree.topology import TreeTopology
from treespec.verify.acceptance import Acceptance, Verifier

__all__ = [
    "Acceptance",
    "AutoTree",
    "BestFirst",
    "Candidates",
    "Chain",
    "ConfigError",
    "DecodeStats",
    "DownloadError",
    "DraftContext",
    "DraftSession",
    "Drafter",
    "DrafterError",
    "InvalidTreeError",
    "LookupDrafter",
    "MergedDrafter",
    "ModelDrafter",
    "RecycleDrafter",
    "Round",
    "SelfCheckError",
    "StaticTree",
    "Target",
    "TargetOutput",
    "TokenTree",
    "TreeDecoder",
    "TreeGenerate",
    "TreeLimits",
    "TreeOutput",
    "TreeTopology",
    "TreespecError",
    "UnsupportedOptionError",
    "UnsupportedTargetError",
    "Verifier",
    "__version__",
    "default_drafter",
    "grow",
    "row_seed",
    "self_check",
]

__version__ = "0.1.0"
