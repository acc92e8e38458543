// A hash map from 64-bit keys to 64-bit values in one array: built once, then looked up millions of times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tersor::text {

/// Open addressing with linear probing, at most half full. The key ~0 is not allowed.
class FlatMap {
 public:
  static constexpr uint64_t kNone = ~uint64_t{0};

  explicit FlatMap(size_t expected = 0) { slots_.assign(capacity_for(expected), {kNone, 0}); }

  /// Returns the value's place and whether the key is new.
  std::pair<uint64_t*, bool> insert(uint64_t key, uint64_t value) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    auto& slot = slots_[find_slot(key)];
    if (slot.first == key) return {&slot.second, false};
    slot = {key, value};
    ++size_;
    return {&slot.second, true};
  }

  /// The value, or kNone.
  uint64_t find(uint64_t key) const {
    const auto& slot = slots_[find_slot(key)];
    return slot.first == key ? slot.second : kNone;
  }

 private:
  static size_t capacity_for(size_t expected) {
    size_t capacity = 16;
    while (capacity < 2 * (expected + 1)) capacity *= 2;
    return capacity;
  }
  size_t find_slot(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    uint64_t hash = key * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
    size_t at = hash & mask;
    while (slots_[at].first != kNone && slots_[at].first != key) at = (at + 1) & mask;
    return at;
  }
  void grow() {
    std::vector<std::pair<uint64_t, uint64_t>> old(slots_.size() * 2, {kNone, 0});
    old.swap(slots_);
    for (const auto& slot : old) {
      if (slot.first != kNone) slots_[find_slot(slot.first)] = slot;
    }
  }

  std::vector<std::pair<uint64_t, uint64_t>> slots_;
  size_t size_ = 0;
};

}  // namespace tersor::text
