"""How draft heads are trained on text that the target itself wrote."""

from treespec.training.answering import DistillOptions
from treespec.training.calibrate import (
    CalibratedTree,
    best_tree,
    load_tree,
    store_evaluation,
    store_tree,
)
from treespec.training.config import TrainConfig
from treespec.training.data import DataFolder, open_data, split
from treespec.training.distill import DistillReport, distill, distill_from_server
from treespec.training.estimate import Estimate, estimate_run
from treespec.training.evaluate import EvaluationOptions, evaluate_heads
from treespec.training.examples import DataMeta, Example
from treespec.training.passages import Passage
from treespec.training.prompts import Message, Prompt, Turn, read_prompts
from treespec.training.recipe import MadeHeads, Recipe, Watchers, make_heads
from treespec.training.reporting import StepReport
from treespec.training.results import DepthRates, Evaluation, TreeRates
from treespec.training.server import ChatServer
from treespec.training.trainer import TrainResult, train_heads

__all__ = [
    "CalibratedTree",
    "ChatServer",
    "DataFolder",
    "DataMeta",
    "DepthRates",
    "DistillOptions",
    "DistillReport",
    "Estimate",
    "Evaluation",
    "EvaluationOptions",
    "Example",
    "MadeHeads",
    "Message",
    "Passage",
    "Prompt",
    "Recipe",
    "StepReport",
    "TrainConfig",
    "TrainResult",
    "TreeRates",
    "Turn",
    "Watchers",
    "best_tree",
    "distill",
    "distill_from_server",
    "estimate_run",
    "evaluate_heads",
    "load_tree",
    "make_heads",
    "open_data",
    "read_prompts",
    "split",
    "store_evaluation",
    "store_tree",
    "train_heads",
]
