// What kv_attend.cu knows about the kernels that other translation units compile.
#pragma once

#include "kernels/cuda/kv_format.h"

namespace tersor::kernels::cuda {

struct AttendVariant {
  const void* function = nullptr;
  int warps = 0, sets = 0;  // a set is four query vectors
  int shared_bytes = 0;
  int resident = 1;  // blocks that a processor holds at once
};

/// What a kernel is wanted for. With few heads the fixed cost of a block rules and eight warps start fastest; sixteen hide more latency
/// over long shares of tiles; with many blocks two at a time hide each other's beginnings and ends.
struct AttendUse {
  bool wide = false;  // more than four query vectors a KV head
  bool long_shares = false, many_blocks = false;
};

AttendVariant attend_variant_64(Code keys, Code values, AttendUse use);
AttendVariant attend_variant_80(Code keys, Code values, AttendUse use);
AttendVariant attend_variant_96(Code keys, Code values, AttendUse use);
AttendVariant attend_variant_128(Code keys, Code values, AttendUse use);
AttendVariant attend_variant_256(Code keys, Code values, AttendUse use);
// Keys of 5 and 6 bits.
AttendVariant attend_wide_variant_64(Code keys, Code values, AttendUse use);
AttendVariant attend_wide_variant_80(Code keys, Code values, AttendUse use);
AttendVariant attend_wide_variant_96(Code keys, Code values, AttendUse use);
AttendVariant attend_wide_variant_128(Code keys, Code values, AttendUse use);
AttendVariant attend_wide_variant_256(Code keys, Code values, AttendUse use);

}  // namespace tersor::kernels::cuda
