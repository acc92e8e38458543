#include "text/bpe.h"

#include <algorithm>
#include <limits>

#include "tersor/base.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace tersor::text {
namespace {

uint64_t pack(uint32_t high, uint32_t low) { return uint64_t{high} << 32 | low; }
uint64_t pair_key(int32_t left, int32_t right) { return pack(static_cast<uint32_t>(left), static_cast<uint32_t>(right)); }

// The order of a heap whose top is the next merge.
bool later(const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) { return a.rank != b.rank ? a.rank > b.rank : a.at > b.at; }

}  // namespace

Bpe::Bpe(const TokenizerData& data, const IdOf& id_of)
    : merges_(data.merges.size()), unk_(data.unk.value_or(-1)), fuse_unk_(data.fuse_unk) {
  for (int byte = 0; byte < 256; ++byte)
    byte_ids_[static_cast<size_t>(byte)] = id_of(byte_level_char(static_cast<uint8_t>(byte))).value_or(-1);
  if (data.merges.size() >= std::numeric_limits<uint32_t>::max()) throw Error("there are too many merges");
  for (size_t rank = 0; rank < data.merges.size(); ++rank) {
    const auto& [left, right] = data.merges[rank];
    const auto known = [&](const std::string& token) {
      if (const auto id = id_of(token)) return *id;
      throw Error("merge " + std::to_string(rank) + " (" + show(left) + " with " + show(right) + ") needs the token " + show(token) +
                  ", which is not in the vocabulary");
    };
    const int32_t merged = known(left + right);
    if (!merges_.insert(pair_key(known(left), known(right)), pack(static_cast<uint32_t>(rank), static_cast<uint32_t>(merged))).second)
      throw Error("merge " + std::to_string(rank) + " (" + show(left) + " with " + show(right) + ") is stated twice");
  }
}

void Bpe::start(std::string_view bytes, std::vector<Scratch::Symbol>& symbols) const {
  symbols.clear();
  bool after_unknown = false;
  for (const char byte : bytes) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(byte)];
    const bool skip = id < 0 && (unk_ < 0 || (fuse_unk_ && after_unknown));
    after_unknown = id < 0;
    if (skip) continue;
    const auto at = static_cast<int32_t>(symbols.size());
    symbols.push_back({id < 0 ? unk_ : id, at - 1, at + 1});
  }
  if (!symbols.empty()) symbols.back().next = -1;
}

void Bpe::offer(Scratch& scratch, int32_t at) const {
  const auto& left = scratch.symbols[static_cast<size_t>(at)];
  if (left.next < 0) return;
  const int32_t right = scratch.symbols[static_cast<size_t>(left.next)].id;
  const uint64_t found = merges_.find(pair_key(left.id, right));
  if (found == FlatMap::kNone) return;
  scratch.queue.push_back({static_cast<uint32_t>(found >> 32), at, static_cast<int32_t>(found), left.id, right});
}

void Bpe::encode(std::string_view bytes, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    throw Error("a piece of the text is larger than 2 GiB; split the text");
  auto& symbols = scratch.symbols;
  auto& queue = scratch.queue;
  start(bytes, symbols);
  queue.clear();
  for (size_t at = 0; at + 1 < symbols.size(); ++at) offer(scratch, static_cast<int32_t>(at));
  std::make_heap(queue.begin(), queue.end(), later);
  const auto push = [&](int32_t at) {
    const size_t before = queue.size();
    offer(scratch, at);
    if (queue.size() > before) std::push_heap(queue.begin(), queue.end(), later);
  };
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), later);
    const auto best = queue.back();
    queue.pop_back();
    auto& left = symbols[static_cast<size_t>(best.at)];
    // Stale: one of the two has been merged since. A consumed symbol has id -1.
    if (left.id != best.left || left.next < 0 || symbols[static_cast<size_t>(left.next)].id != best.right) continue;
    auto& right = symbols[static_cast<size_t>(left.next)];
    left.id = best.merged;
    left.next = right.next;
    right.id = -1;
    if (right.next >= 0) symbols[static_cast<size_t>(right.next)].previous = best.at;
    if (left.previous >= 0) push(left.previous);
    push(best.at);
  }
  for (int32_t at = symbols.empty() ? -1 : 0; at >= 0; at = symbols[static_cast<size_t>(at)].next)
    ids.push_back(symbols[static_cast<size_t>(at)].id);
}

}  // namespace tersor::text
