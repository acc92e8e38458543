"""Where the caches of a prompt stand: in the list that mlx_lm passes around, or in lists of caches within it."""

from __future__ import annotations

from typing import Dict, List, Sequence, Tuple

from mlx_lm.models.cache import CacheList, KVCache

Place = Tuple[int, ...]  # index in the prompt cache, then in nested lists of caches


def name_of(place: Place) -> str:
    return "layer " + ".".join(str(i) for i in place)


def all_places(caches: Sequence, at: Place = ()) -> List[Tuple[Place, object]]:
    """Every cache that is no list, with its place."""
    found = []
    for i, entry in enumerate(caches):
        if type(entry) is CacheList:
            found += all_places(entry.caches, (*at, i))
        else:
            found.append(((*at, i), entry))
    return found


def plain_places(caches: Sequence) -> List[Place]:
    """Where mlx_lm's plain KV caches stand. Others are the model's own business."""
    return [place for place, entry in all_places(caches) if type(entry) is KVCache]


def put(caches: Sequence, replacements: Dict[Place, object], at: Place = ()) -> list:
    """The same caches with others at places."""
    result = []
    for i, entry in enumerate(caches):
        place = (*at, i)
        if place in replacements:
            result.append(replacements[place])
        elif type(entry) is CacheList:
            result.append(CacheList(*put(entry.caches, replacements, place)))
        else:
            result.append(entry)
    return result
