"""Counted floats compared with FedALA's table 3. ``test_all_methods.py`` counts the
floats that each method's docstring states.
"""

import pytest
import traffic


@pytest.mark.slow
@pytest.mark.parametrize("method", traffic.FEDALA_TABLE_3)
def test_every_method_of_fedalas_table_agrees_with_it(method):
    counted = traffic.count(method)
    assert counted.paper is not None
    _, paper = counted.paper
    # A client of hpcfl stores its own model, which the paper sends with the others.
    own = 1 if method in ("apple", "fedfomo") else 0
    # FedFomo's clients also report the models that they request, M floats that the
    # paper leaves out.
    assert counted.down + counted.up == pytest.approx(paper - own, rel=1e-3)


@pytest.mark.slow
def test_the_methods_page_contains_the_counted_traffic():
    page = traffic.PAGE.read_text(encoding="utf-8")
    assert traffic.insert_table(page) == page
