from __future__ import annotations

import random

import pytest

from search.tree import ROOT, Tree


def slow_live_tokens(tree: Tree) -> int:
    wanted: set[int] = set()
    for node in tree:
        if node.live:
            wanted.update(tree.path(node.id))
    return sum(len(tree[n].token_ids) for n in wanted)


def test_paths_contain_the_prompt_and_every_ancestor() -> None:
    tree = Tree((1, 2))
    a = tree.add(ROOT)
    b = tree.add(a)
    tree.extend(a, (3, 4), "x")
    tree.extend(b, (5,), "y")
    assert tree.path(b) == [ROOT, a, b]
    assert tree.path_ids(b) == (1, 2, 3, 4, 5)
    assert tree.path_text(b) == "xy"
    assert tree.path_tokens(b) == 5
    assert tree.generated_tokens == 3
    assert tree.prompt_tokens == 2


def test_a_prefix_that_siblings_share_counts_once() -> None:
    tree = Tree((1, 2))
    a = tree.add(ROOT)
    tree.extend(a, (3,) * 10, "")
    for _ in range(3):
        tree.extend(tree.add(a), (4,), "")
    assert tree.live_tokens == 2 + 10 + 3


def test_a_retired_node_stays_in_the_footprint_while_a_live_child_needs_it() -> None:
    tree = Tree((1,))
    a = tree.add(ROOT)
    b = tree.add(a)
    tree.extend(a, (2, 3), "")
    tree.extend(b, (4,), "")
    tree.retire(a)
    assert tree.live_tokens == 4
    tree.retire(b)
    assert tree.live_tokens == 1
    c = tree.add(a)
    tree.extend(c, (5,), "")
    assert tree.live_tokens == 4


def test_the_root_neither_grows_nor_retires() -> None:
    tree = Tree((1,))
    with pytest.raises(ValueError, match="root"):
        tree.extend(ROOT, (2,), "")
    tree.retire(ROOT)
    assert tree.live_tokens == 1


def test_a_released_tree_holds_nothing_until_a_node_under_the_root_is_live_again() -> None:
    tree = Tree((1, 2))
    a = tree.add(ROOT)
    tree.extend(a, (3, 4, 5), "")
    tree.release()
    assert tree.live_tokens == 0
    tree.wake(a)
    assert tree.live_tokens == 5
    tree.retire(a)
    assert tree.live_tokens == 2
    tree.release()
    b = tree.add(a)
    assert tree.live_tokens == 5
    tree.retire(b)
    assert tree.live_tokens == 2


@pytest.mark.parametrize("parent", [-1, 1, 99])
def test_a_node_needs_an_existing_parent(parent: int) -> None:
    with pytest.raises(IndexError):
        Tree((1,)).add(parent)


def test_the_running_count_of_live_tokens_equals_a_full_recount() -> None:
    rng = random.Random(7)
    tree = Tree((1, 2, 3))
    for _ in range(600):
        action = rng.random()
        if action < 0.3:
            tree.add(rng.randrange(len(tree)))
        elif action < 0.7 and len(tree) > 1:
            tree.extend(rng.randrange(1, len(tree)), (0,) * rng.randint(0, 4), "")
        elif action < 0.9:
            tree.retire(rng.randrange(len(tree)))
        elif action < 0.97:
            tree.wake(rng.randrange(len(tree)))
        else:
            tree.release()
        assert tree.live_tokens == slow_live_tokens(tree)


def test_a_given_node_that_is_taken_back_has_never_been() -> None:
    tree = Tree((1, 2, 3))
    node = tree.add(0)
    tree.extend(node, (4, 5), "ab")
    tree.retire(node)
    before = (len(tree), tree.live_tokens, tree.given_tokens)
    turn = tree.add_given(node, (6, 7), "")
    assert (tree.live_tokens, tree.given_tokens) == (7, 2)
    tree.take_back(turn)
    assert (len(tree), tree.live_tokens, tree.given_tokens) == before
    with pytest.raises(ValueError, match="just added"):
        tree.take_back(node)
    first = tree.add_given(node, (6,), "")
    tree.add_given(first, (7,), "")
    with pytest.raises(ValueError, match="just added"):
        tree.take_back(first)
