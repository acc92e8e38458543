// The two ends of a decode step on the GPU: token ids to rows of the embedding, logits to the likeliest id. Ids stay on the device, so
// that the host can run ahead. Launch descriptions only (launch.h).
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear.h"

namespace tersor::kernels::cuda {

struct EmbedParams {
  PackedLinear table;          // bits 0: dense rows [rows, k] of scale_type
  const void* data = nullptr;  // packed (the strips from first_strip on), or dense
  const void* ids = nullptr;   // [tokens], 4 or 8 bytes each
  void* out = nullptr;         // [tokens, k] of out_type
  int first_strip = 0, rows = 0, tokens = 0, id_bytes = 4;
  Dtype out_type = Dtype::f16;
};
/// Row ids[t] for each token; ids outside [0, rows) give NaN.
Launch embed(const EmbedParams& params);

struct ArgmaxParams {
  const float* logits = nullptr;       // [rows, stride]
  int* out = nullptr;                  // [rows]
  unsigned long long* best = nullptr;  // [rows], zero before the launch and after it
  unsigned* tickets = nullptr;         // [rows], the same
  long long stride = 0;
  int rows = 0, count = 0;  // of `stride` logits, the first `count` are looked at
};
constexpr int kArgmaxMostRows = 1024;
/// The index of the largest logit, the first of equals; -1 where a logit is NaN or infinite or all are -infinity.
Launch argmax(const ArgmaxParams& params);

}  // namespace tersor::kernels::cuda
