"""Shapes in annotations are checked while tests run, and only then."""

import subprocess
import sys

import pytest
import torch
from jaxtyping import TypeCheckError

from tests.meta.project import ROOT
from treespec.sampling import gumbel
from treespec.tree import token_tree, topology


def test_an_argument_of_the_wrong_dtype_is_refused_in_tests():
    with pytest.raises(TypeCheckError, match="tokens"):
        gumbel(0, 0, torch.tensor([0.5]))


def test_a_field_of_the_wrong_shape_is_refused_in_tests():
    flat = torch.zeros(2)
    with pytest.raises(TypeCheckError, match="draft_probs"):
        token_tree.TokenTree(
            topology.TreeTopology([-1, 0]),
            tokens=torch.tensor([3, 4]),
            sources=torch.tensor([0, 1]),
            draw="iid",
            draft_probs=flat,
        )


def test_users_pay_nothing_for_the_checks():
    script = (
        "import sys, torch\n"
        "from treespec.sampling import gumbel\n"
        "gumbel(0, 0, torch.tensor([1.0]))\n"
        "sys.exit('beartype' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=120)
