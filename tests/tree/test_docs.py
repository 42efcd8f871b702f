import doctest
from pathlib import Path


def test_the_examples_on_the_page_about_trees_print_what_it_says():
    page = Path(__file__).parents[2] / "docs" / "math" / "trees.md"

    results = doctest.testfile(str(page), module_relative=False)
    assert (results.failed, results.attempted > 9) == (0, True)
