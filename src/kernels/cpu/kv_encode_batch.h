// What is encoded together.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/layout.h"

namespace tersor::kernels {

// A batch holds up to 16 vectors, one a lane: numbers [dim][16].
inline constexpr size_t kEncodeBatch = codec::kLanes;

// Where each vector of a batch comes from and goes to.
struct EncodeBatch {
  size_t count = 0;
  const void* from[kEncodeBatch];
  int64_t head[kEncodeBatch];
  int64_t row_of_heads[kEncodeBatch];  // batch item * heads + head
  uint8_t* block[kEncodeBatch];        // the block that holds the token
  int token[kEncodeBatch];             // within the block
};

// Tokens of one head whose channels are encoded together: the layout's group of them, from `token` of a block on.
struct EncodeGroup {
  int64_t batch, head, row;  // of the first one's vector
  uint8_t* block;
  int token;
};

}  // namespace tersor::kernels
