"""Settings of the tests of verifiers."""

from collections.abc import Iterator

import pytest
from jaxtyping import config


@pytest.fixture(scope="module")
def plain_calls() -> Iterator[None]:
    """Call the library without checking annotations at run time.

    Enumerating calls tiny functions a million times, and checking each takes longer than running
    it; what they are checked for does not depend on the case. Other modules keep the checks on.
    """
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
