"""Fixtures for tests of trees."""

from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture
def _unchecked_types() -> Iterator[None]:
    """Types as users meet them: the library's own validation is the first to see an argument."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
