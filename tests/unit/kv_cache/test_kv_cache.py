import torch

from spec_harness.kv_cache.kv_cache import KVCache, LayerShape
from tests.helpers import CPU

LAYERS = [LayerShape(2, 4, 4), LayerShape(1, 4, 6)]


def cache() -> KVCache:
    return KVCache(LAYERS, num_blocks=3, block_size=2, dtype=torch.float32, device=CPU)


def test_what_is_written_is_gathered_back_from_its_layer_and_slots() -> None:
    store = cache()
    slots = torch.tensor([7, 2, 4])
    written = []
    for layer, shape in enumerate(LAYERS):
        key, value = (torch.randn(3, shape.num_kv_heads, dim) for dim in (shape.key_dim, shape.value_dim))
        store.write(layer, slots, key, value)
        written.append((key, value))
    for layer, (key, value) in enumerate(written):
        k, v = store.gather(layer, torch.tensor([[4, 2], [7, 7]]))
        assert torch.equal(k, key[torch.tensor([[2, 1], [0, 0]])])
        assert torch.equal(v, value[torch.tensor([[2, 1], [0, 0]])])


def test_gathered_tensors_are_copies() -> None:
    store = cache()
    key, _ = store.gather(0, torch.tensor([[1]]))
    key.fill_(1.0)
    assert not store.keys[0].any()


def test_there_is_one_block_on_top_of_the_usable_ones() -> None:
    assert [tuple(k.shape) for k in cache().keys] == [(8, 2, 4), (8, 1, 4)]
    assert [tuple(v.shape) for v in cache().values] == [(8, 2, 4), (8, 1, 6)]


def test_bytes_per_block_are_those_of_the_tensors() -> None:
    store = cache()
    total = sum(t.numel() * t.element_size() for t in (*store.keys, *store.values))
    assert KVCache.bytes_per_block(LAYERS, block_size=2, dtype=torch.float32) == total // 4
    assert KVCache.bytes_per_block(LAYERS, block_size=2, dtype=torch.bfloat16) == total // 8
