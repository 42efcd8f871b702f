"""Settings of every test run: no network, one thread, reproducible examples."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

# Read by huggingface_hub when it is first imported, so set before any test module is.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import jaxtyping
import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # models of two layers lose more to hand-over than they gain

ENGINE_TESTS = Path(__file__).parent
"""The modules beside the packages call models, so these tests depend on transformers' version."""

if TYPE_CHECKING:
    from tests.rig import NearTies

settings.register_profile("treespec", deadline=None, derandomize=True, database=None)
settings.load_profile("treespec")


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs on the oldest transformers, and skip what needs a GPU where there is none."""
    for item in items:
        if item.path.parent == ENGINE_TESTS:
            item.add_marker(pytest.mark.oldest)
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture
def _unchecked_types() -> Iterator[None]:
    """Types as users meet them: the library's own validation is the first to see an argument."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def near_ties(record_property: Callable[[str, object], None]) -> "Iterator[NearTies]":
    """Compares texts, and counts the differences that rounding explains."""
    from tests.rig import NearTies  # not at the top: nothing may import treespec before the hook

    ties = NearTies()
    yield ties
    record_property("texts_compared", ties.compared)
    record_property("near_ties", ties.count)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many texts were compared, and how many differed at a near-tie."""
    reports = terminalreporter.stats.get("", [])
    recorded = [dict(report.user_properties) for report in reports if report.when == "teardown"]
    compared = sum(one.get("texts_compared", 0) for one in recorded)
    ties = sum(one.get("near_ties", 0) for one in recorded)
    if compared:
        terminalreporter.write_line(
            f"{compared} texts compared with plain decoding token for token, {ties} near-ties"
        )
