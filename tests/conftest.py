"""Settings of every test run: no network, one thread, reproducible examples."""

import os
from collections.abc import Iterator

# Read by huggingface_hub when it is first imported, so set before any test module is.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import jaxtyping
import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # models of two layers lose more to hand-over than they gain

settings.register_profile("treespec", deadline=None, derandomize=True, database=None)
settings.load_profile("treespec")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture
def _unchecked_types() -> Iterator[None]:
    """Types as users meet them: the library's own validation is the first to see an argument."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
