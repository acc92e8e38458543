// What kv_attend.cu knows about the kernels that other translation units compile.
#pragma once

#include "kernels/cuda/kv_format.h"

namespace tersor::kernels::cuda {

struct AttendVariant {
  const void* function = nullptr;
  int warps = 0, sets = 0;  // a set is four query vectors
  int shared_bytes = 0;
};

AttendVariant attend_variant_64(Code keys, Code values, bool wide, bool many_warps);
AttendVariant attend_variant_80(Code keys, Code values, bool wide, bool many_warps);
AttendVariant attend_variant_96(Code keys, Code values, bool wide, bool many_warps);
AttendVariant attend_variant_128(Code keys, Code values, bool wide, bool many_warps);
AttendVariant attend_variant_256(Code keys, Code values, bool wide, bool many_warps);

}  // namespace tersor::kernels::cuda
