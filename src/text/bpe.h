// Byte-pair encoding of one piece: the lowest-ranked pair merges first, the leftmost of equals first.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "tersor/text.h"
#include "text/flat_map.h"

namespace tersor::text {

class Bpe {
 public:
  using IdOf = std::function<std::optional<int32_t>(std::string_view)>;
  /// Throws Error for merges of what is no token and for a pair stated twice.
  Bpe(const TokenizerData& data, const IdOf& id_of);

  struct Scratch {
    struct Symbol {
      int32_t id, previous, next;  // neighbours, -1: none
    };
    struct Candidate {
      uint32_t rank;
      int32_t at;  // index of the left symbol
      int32_t merged, left, right;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> queue;
  };
  /// Appends the ids of a piece's bytes. O(n log n). Throws Error for a piece of 2 GiB or more.
  void encode(std::string_view bytes, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  void start(std::string_view bytes, std::vector<Scratch::Symbol>& symbols) const;
  void offer(Scratch& scratch, int32_t at) const;

  std::array<int32_t, 256> byte_ids_;  // -1: the byte has no token
  FlatMap merges_;                     // left id, right id -> rank, merged id
  int32_t unk_ = -1;
  bool fuse_unk_ = false;
};

}  // namespace tersor::text
