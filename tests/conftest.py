"""Settings of every test run: no network, one thread, reproducible examples."""

import os
from collections.abc import Iterator
from pathlib import Path

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
