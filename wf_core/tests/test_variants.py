"""What is made from a base's weights once: shared while sessions hold it, gone with its sources or by the budget."""

from __future__ import annotations

import gc
import weakref

import torch

from wf_core.kinds.variants import Variants, VariantStore


def doubled(source: torch.Tensor, made: list[int]):
    def build():
        made.append(1)
        return {"weight": source.detach() * 2}

    return build


def test_two_sessions_share_one_and_the_last_one_drops_it():
    store, source, made = VariantStore(), torch.ones(8), []
    first, second = Variants(store, "pack"), Variants(store, "pack")
    one = first.get("w", [source], doubled(source, made))
    assert second.get("w", [source], doubled(source, made)) is one
    assert store.describe() == ({"feature": "pack", "key": "w", "bytes": 32, "sessions": 2},)
    alive = weakref.ref(one["weight"])
    del one
    first.close()
    assert len(store.describe()) == 1
    second.close()
    gc.collect()
    assert (made, store.describe(), alive()) == ([1], (), None)


def test_other_features_keys_and_sources_have_their_own():
    store, a, b, made = VariantStore(), torch.ones(2), torch.ones(2), []
    views = Variants(store, "pack"), Variants(store, "cast")
    for view, key, source in ((views[0], "w", a), (views[1], "w", a), (views[0], "v", a), (views[0], "w", b)):
        view.get(key, [source], doubled(source, made))
    assert len(made) == 4


def test_a_budget_keeps_the_latest_for_the_next_session():
    store, sources, made = VariantStore(budget=64), [torch.ones(8) for _ in range(3)], []
    for source in sources:
        session = Variants(store, "pack")
        session.get("w", [source], doubled(source, made))
        session.close()
    assert [entry["bytes"] for entry in store.describe()] == [32, 32]
    again = Variants(store, "pack")
    again.get("w", [sources[2]], doubled(sources[2], made))
    again.get("w", [sources[0]], doubled(sources[0], made))
    assert len(made) == 4, "the first was let go, the last was kept"
    again.close()
    assert store.release() == 64
    assert store.describe() == ()


def test_it_dies_with_its_sources_even_within_the_budget():
    store, source = VariantStore(budget=1 << 20), torch.ones(8)
    session = Variants(store, "pack")
    session.get("w", [source], doubled(source, []))
    session.close()
    del source
    gc.collect()
    assert store.describe() == ()


def test_weights_that_were_written_to_are_packed_anew():
    store, source, made = VariantStore(budget=1 << 20), torch.ones(2), []
    session = Variants(store, "pack")
    session.get("w", [source], doubled(source, made))
    source.mul_(3)
    assert session.get("w", [source], doubled(source, made))["weight"].tolist() == [6.0, 6.0]
    session.close()


def test_a_base_that_outlives_many_sessions_is_not_watched_ever_more():
    store, source = VariantStore(), torch.ones(8)
    for _ in range(20):
        session = Variants(store, "pack")
        session.get("w", [source], doubled(source, []))
        session.close()
    assert weakref.getweakrefcount(source) == 0


def test_a_session_that_nobody_closed_holds_nothing():
    store, source = VariantStore(), torch.ones(8)
    session = Variants(store, "pack")
    session.get("w", [source], doubled(source, []))
    del session
    gc.collect()
    assert store.describe() == ()
