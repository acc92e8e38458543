#include "cache/kv_size.h"

#include <algorithm>

namespace tersor::cache {
namespace {

// Bits of one token's keys or values in all layers.
double token_bits(const codec::Spec& spec, codec::Role role, int dim, Dtype full_dtype, double vectors) {
  return codec::bits_per_element(spec, role, dim, full_dtype) * dim * vectors;
}

}  // namespace

uint64_t expected_bytes(const KvSpec& spec, int layers, const LayerShape& shape, Dtype full_dtype, int64_t tokens) {
  const auto bits = [&](const codec::Spec& keys, const codec::Spec& values, double vectors) {
    return token_bits(keys, codec::Role::keys, shape.key_dim, full_dtype, vectors) +
           token_bits(values, codec::Role::values, shape.value_dim, full_dtype, vectors);
  };
  const double heads = static_cast<double>(shape.batch) * shape.kv_heads;
  const double skipped = std::min<double>(static_cast<double>(spec.skip.size()), layers);
  const auto total = static_cast<double>(tokens), whole = static_cast<double>(std::min<int64_t>(tokens, spec.window + spec.sinks));
  const double full = bits({}, {}, heads);
  const double sum = (layers - skipped) * (bits(spec.keys, spec.values, heads) * total + full * whole) + skipped * full * total;
  return static_cast<uint64_t>(sum / 8);
}

}  // namespace tersor::cache
