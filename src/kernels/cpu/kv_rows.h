// Rows of keys, values or queries as a kernel receives them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tersor/base.h"

namespace tersor::kernels {

/// [batch][head][token][dim] in any arrangement whose last axis is contiguous; strides in elements.
struct KvRows {
  const void* data = nullptr;
  Dtype type = Dtype::f32;
  int64_t batch_stride = 0, head_stride = 0, token_stride = 0;

  const void* row(int64_t batch, int64_t head, int64_t token) const {
    return static_cast<const char*>(data) +
           (batch * batch_stride + head * head_stride + token * token_stride) * static_cast<int64_t>(size_of(type));
  }
};

}  // namespace tersor::kernels
