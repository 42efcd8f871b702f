"""The names that users may rely on; a change here is a change of the public contract."""

import importlib
import importlib.metadata
import re

import pytest

import treespec
from tests.meta.project import ROOT

PUBLIC_NAMES = {
    "treespec": {
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
    },
}


@pytest.mark.parametrize("package", PUBLIC_NAMES)
def test_public_names_are_the_documented_ones(package: str):
    assert set(importlib.import_module(package).__all__) == PUBLIC_NAMES[package]


@pytest.mark.parametrize("package", PUBLIC_NAMES)
def test_public_names_can_be_imported(package: str):
    module = importlib.import_module(package)
    assert all(getattr(module, name) is not None for name in PUBLIC_NAMES[package])


@pytest.mark.parametrize("name", sorted(PUBLIC_NAMES["treespec"] - {"__version__"}))
def test_public_name_has_an_api_page(name: str):
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/api").glob("*.md"))
    documented = re.findall(r"^::: ([\w.]+)$", pages, flags=re.MULTILINE)
    module = getattr(treespec, name).__module__
    assert {module, f"{module}.{name}"} & set(documented)


def test_the_version_is_the_one_of_the_installed_package():
    assert treespec.__version__ == importlib.metadata.version("treespec")
