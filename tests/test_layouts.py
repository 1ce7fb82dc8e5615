"""How many nodes are tried: all of a few; of many, those that schedulers give and those that the batch divides over."""

from hypothesis import given
from hypothesis import strategies as st

from generator.techniques.layouts import FEW_NODES, list_node_counts


@given(st.integers(2, 3000), st.sampled_from([1, 2, 4, 8, 16, 72]), st.integers(1, 20_000))
def test_the_most_nodes_that_divide_a_batch_are_tried(nodes, each, batch):
    counts = list_node_counts(nodes, each, batch)
    assert counts == sorted(set(counts)) and counts[-1] == nodes and counts[0] == 2
    if nodes <= FEW_NODES:
        assert counts == list(range(2, nodes + 1))
        return
    whole = [n for n in range(2, nodes + 1) if batch % (n * each) == 0]
    assert not whole or whole[-1] in counts
    assert {1 << k for k in range(1, nodes.bit_length())} <= set(counts)
    assert len(counts) <= 3 * nodes.bit_length()
    assert all(batch % n == 0 or n & (n - 1) == 0 or n == nodes for n in counts)
