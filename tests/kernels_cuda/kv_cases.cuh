// Caches in device memory for the tests of the cache kernels, and attention over them in double precision.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "codec/layout.h"
#include "codec/rotation.h"
#include "kernels/cuda/kv_append.h"
#include "kernels/cuda/kv_attend.h"
#include "kernels/cuda/kv_attend_variants.h"
#include "kernels/cuda/kv_codec.h"
#include "kernels/cuda/kv_prefill.h"
#include "linear_device.cuh"

namespace tersor::kernels::cuda {

constexpr int kFar = 1 << 29;

inline Number number_of(Dtype type) { return type == Dtype::f16 ? Number::f16 : type == Dtype::bf16 ? Number::bf16 : Number::f32; }
inline float rounded(float x, Dtype type) {
  return type == Dtype::f16 ? half_to_float(float_to_half(x)) : type == Dtype::bf16 ? bfloat_to_float(float_to_bfloat(x)) : x;
}
inline std::vector<uint8_t> bytes_of(const std::vector<float>& x, Dtype type) {
  std::vector<uint8_t> bytes(x.size() * size_of(type));
  for (size_t i = 0; i < x.size(); ++i) {
    const uint16_t narrow = type == Dtype::f16 ? float_to_half(x[i]) : float_to_bfloat(x[i]);
    std::memcpy(&bytes[i * size_of(type)], type == Dtype::f32 ? static_cast<const void*>(&x[i]) : &narrow, size_of(type));
  }
  return bytes;
}
inline std::vector<float> floats_of(const std::vector<uint8_t>& bytes, Dtype type) {
  std::vector<float> x(bytes.size() / size_of(type));
  for (size_t i = 0; i < x.size(); ++i) {
    uint16_t narrow;
    std::memcpy(&narrow, &bytes[i * size_of(type)], 2);
    if (type == Dtype::f32)
      std::memcpy(&x[i], &bytes[i * 4], 4);
    else
      x[i] = type == Dtype::f16 ? half_to_float(narrow) : bfloat_to_float(narrow);
  }
  return x;
}

/// Tokens major [batch][tokens][heads][dim] on both sides.
struct DeviceRows {
  int batch, tokens, heads, dim;
  Dtype type;
  std::vector<float> host;
  Buffer device;
  DeviceRows(std::vector<float> numbers, int b, int t, int h, int d, Dtype dtype)
      : batch(b), tokens(t), heads(h), dim(d), type(dtype), host(std::move(numbers)), device(bytes_of(round(host, dtype), dtype)) {}
  static std::vector<float>& round(std::vector<float>& x, Dtype type) {
    for (float& v : x) v = rounded(v, type);
    return x;
  }
  const float* row(int b, int h, int t) const { return &host[((static_cast<size_t>(b) * tokens + t) * heads + h) * dim]; }
  Rows rows() const {
    return {device.get(), static_cast<int64_t>(tokens) * heads * dim, dim, static_cast<int64_t>(heads) * dim, 1, number_of(type)};
  }
};

/// Codecs of a layer and the rotations all its buffers live in.
struct LayerCodecs {
  std::shared_ptr<const codec::Codec> keys, values, full_keys, full_values;
  LayerCodecs(const std::string& k, const std::string& v, int dim, Dtype full) {
    using namespace codec;
    keys = Codec::make(Spec::parse(k), Role::keys, dim, full), values = Codec::make(Spec::parse(v), Role::values, dim, full);
    full_keys = Codec::make(Spec::parse("full"), Role::keys, dim, full),
    full_values = Codec::make(Spec::parse("full"), Role::values, dim, full);
  }
};

/// One buffer of tiles: [batch][head][tile].
struct Slab {
  codec::Layout keys, values;
  int batch, heads, capacity, first;
  int count = 0;
  Buffer tiles;
  static codec::Layout layout(std::shared_ptr<const codec::Codec> c) {
    return codec::Layout(std::move(c), 16, codec::Arrangement::fragments);
  }
  Slab(const LayerCodecs& codecs, bool full, int b, int h, int tokens, int position)
      : keys(layout(full ? codecs.full_keys : codecs.keys)),
        values(layout(full ? codecs.full_values : codecs.values)),
        batch(b),
        heads(h),
        capacity((tokens + keys.block_tokens - 1) / keys.block_tokens * keys.block_tokens),
        first(position),
        tiles(static_cast<size_t>(b) * h * head_bytes()) {
    keys.stride = values.stride = keys.block_bytes + values.block_bytes;
  }
  size_t head_bytes() const { return keys.bytes(capacity) + values.bytes(capacity); }
  bool full() const { return keys.family == codec::Family::full; }
  /// Decoded keys or values of all tokens [batch][head][token][dim], in the stored basis.
  std::vector<float> decoded(bool of_keys) const {
    const codec::Layout& layout = of_keys ? keys : values;
    const auto bytes = tiles.read<uint8_t>();
    std::vector<float> x(static_cast<size_t>(batch) * heads * count * layout.dim);
    for (int bh = 0; bh < batch * heads; ++bh)
      for (int t = 0; t < count; ++t)
        layout.decode(&bytes[bh * head_bytes() + (of_keys ? 0 : keys.block_bytes)], t,
                      {&x[(static_cast<size_t>(bh) * count + t) * layout.dim], static_cast<size_t>(layout.dim)});
    return x;
  }
  AppendJob job(bool of_keys, int begin, int n) const {
    AppendJob j;
    j.tiles = tiles.bytes(), j.head_stride = head_bytes(), j.batch_stride = head_bytes() * heads;
    j.tile_bytes = static_cast<unsigned>(keys.stride), j.side_offset = of_keys ? 0 : static_cast<unsigned>(keys.block_bytes);
    j.begin = begin, j.at = count, j.count = n;
    j.code = *code_of(*(of_keys ? keys : values).codec), j.keys = of_keys;
    return j;
  }
};

/// Appends tokens [begin, begin + n) of k and v to all slabs.
inline void append(const LayerCodecs& codecs, std::vector<Slab*> slabs, const DeviceRows& k, const DeviceRows& v, int begin, int n,
                   bool sanitise = true, const float* centre = nullptr) {
  AppendParams p;
  p.rows[0] = k.rows(), p.rows[1] = v.rows();
  p.rotations[0] = rotation_bits(codecs.keys->rotation()), p.rotations[1] = rotation_bits(codecs.values->rotation());
  p.levels[0] = levels_of(*codecs.keys), p.levels[1] = levels_of(*codecs.values);
  p.full_type[0] = p.full_type[1] = number_of(codecs.full_keys->dtype());
  p.heads = k.heads, p.sanitise = sanitise, p.centre = centre;
  for (Slab* slab : slabs) {
    p.job[p.jobs++] = slab->job(true, begin, n), p.job[p.jobs++] = slab->job(false, begin, n);
    slab->count += n;
  }
  const Launch l = append_plan(p, k.dim, k.batch);
  launch(l, p);
}

struct Read {
  const Slab* slab;
  int lo_abs = -kFar, lo_rel = -kFar, hi_abs = kFar, hi_rel = -kFar;
};

struct AttendCase {
  int group = 1, rows = 1, position = 0, sliding_window = 0;
  float scale = 0.1f, soft_cap = 0;
  bool causal = true;
  std::vector<float> sinks = {};   // [heads] or empty
  std::vector<float> mask = {};    // [rows][positions] additive or empty
  int positions = 0;               // columns of the mask
  std::optional<int> splits = {};  // instead of the plan's
  bool prefill = false;            // by the kernel for many rows
};

/// q: tokens major.
inline std::vector<float> attend(const LayerCodecs& codecs, const std::vector<Read>& reads, const DeviceRows& q, const AttendCase& c,
                                 int kv_heads) {
  AttendParams p;
  const Buffer out(q.host.size() * size_of(q.type), 0xff), sinks(c.sinks), mask(c.mask);
  p.queries = q.rows();
  p.out = out.get();
  p.out_batch_stride = p.queries.batch_stride, p.out_head_stride = p.queries.head_stride, p.out_token_stride = p.queries.token_stride;
  p.key_rotation = rotation_bits(codecs.keys->rotation()), p.value_rotation = rotation_bits(codecs.values->rotation());
  p.key_levels = levels_of(*codecs.keys), p.value_levels = levels_of(*codecs.values);
  p.scale = c.scale, p.soft_cap = c.soft_cap, p.batch = q.batch, p.kv_heads = kv_heads, p.group = c.group, p.rows = c.rows;
  p.position = c.position, p.causal = c.causal, p.sliding_window = c.sliding_window;
  p.full_type = number_of(codecs.full_keys->dtype());
  if (!c.sinks.empty()) p.sinks = static_cast<const float*>(sinks.get());
  if (!c.mask.empty()) p.mask = static_cast<const float*>(mask.get()), p.mask_strides[2] = c.positions, p.mask_strides[3] = 1;
  for (const Read& read : reads) {
    AttendSegment& s = p.segments[p.segment_count++];
    s.tiles = read.slab->tiles.bytes(), s.head_stride = read.slab->head_bytes(), s.batch_stride = s.head_stride * kv_heads;
    s.first = read.slab->first, s.end = read.slab->first + read.slab->count, s.full = read.slab->full();
    s.lo_abs = read.lo_abs, s.lo_rel = read.lo_rel, s.hi_abs = read.hi_abs, s.hi_rel = read.hi_rel;
  }
  if (c.prefill) {
    PrefillParams many{p};
    const Launch l = prefill_any(many, *code_of(*codecs.keys), *code_of(*codecs.values), q.dim);
    if (l.function == nullptr) return {};
    launch(l, many);
    check(cudaDeviceSynchronize(), "attend");
    return floats_of(out.read<uint8_t>(), q.type);
  }
  AttendPlan plan = attend_plan(p, *code_of(*codecs.keys), *code_of(*codecs.values), q.dim, 132);
  if (plan.launch.function == nullptr) return {};
  if (c.splits)
    attend_split(p, plan,
                 {plan.launch.function, static_cast<int>(plan.launch.block.x / 32), c.group * c.rows > 4 && q.dim <= 128 ? 2 : 1,
                  static_cast<int>(plan.launch.shared_bytes)},
                 q.dim, *c.splits);
  const Buffer partials(plan.partial_floats * 4, 0xff), tickets(plan.tickets * 4);
  p.partials = static_cast<float*>(partials.get()), p.tickets = static_cast<unsigned*>(tickets.get());
  launch(plan.launch, p);
  check(cudaDeviceSynchronize(), "attend");
  for (const unsigned ticket : tickets.read<unsigned>())
    check(ticket == 0 ? cudaSuccess : cudaErrorUnknown, "tickets are not back at zero");
  return floats_of(out.read<uint8_t>(), q.type);
}

/// The same over decoded numbers, in double.
class Oracle {
 public:
  Oracle(const LayerCodecs& codecs, const std::vector<Read>& reads) : codecs_(codecs), reads_(reads) {
    for (const Read& read : reads) keys_.push_back(read.slab->decoded(true)), values_.push_back(read.slab->decoded(false));
  }
  std::vector<float> attend(const DeviceRows& q, const AttendCase& c, int kv_heads) const {
    std::vector<float> out;
    for (int b = 0; b < q.batch; ++b)
      for (int t = 0; t < q.tokens; ++t)
        for (int h = 0; h < q.heads; ++h) {
          const auto row = vector(q, c, b, h, t, kv_heads);
          out.insert(out.end(), row.begin(), row.end());
        }
    return out;
  }

 private:
  std::vector<double> vector(const DeviceRows& q, const AttendCase& c, int b, int h, int t, int kv_heads) const {
    std::vector<double> query(q.row(b, h, t), q.row(b, h, t) + q.dim), sum(q.dim, 0.0);
    if (codecs_.keys->rotation()) codecs_.keys->rotation()->apply(query);
    double top = c.sinks.empty() ? -INFINITY : c.sinks[h], total = 0;
    std::vector<std::pair<double, const float*>> seen;
    const int position = c.position + t;
    for (size_t i = 0; i < reads_.size(); ++i) {
      const Read& read = reads_[i];
      const int lo = std::max(read.lo_abs, position + read.lo_rel), hi = std::max(read.hi_abs, position + read.hi_rel);
      for (int j = 0; j < read.slab->count; ++j) {
        const int x = read.slab->first + j;
        if (x < lo || x >= hi || (c.causal && x > position) || (c.sliding_window > 0 && x <= position - c.sliding_window)) continue;
        const size_t at = ((static_cast<size_t>(b) * kv_heads + h / c.group) * read.slab->count + j) * q.dim;
        double score = 0;
        for (int d = 0; d < q.dim; ++d) score += query[d] * keys_[i][at + d];
        score *= c.scale;
        if (c.soft_cap > 0) score = c.soft_cap * std::tanh(score / c.soft_cap);
        if (!c.mask.empty()) score += c.mask[static_cast<size_t>(t) * c.positions + x];
        if (score == -INFINITY) continue;
        seen.emplace_back(score, &values_[i][at]);
        top = std::max(top, score);
      }
    }
    if (!c.sinks.empty()) total = std::exp(c.sinks[h] - top);
    for (const auto& [score, value] : seen) {
      const double weight = std::exp(score - top);
      total += weight;
      for (int d = 0; d < q.dim; ++d) sum[d] += weight * value[d];
    }
    for (double& x : sum) x = total > 0 ? x / total : 0;
    if (codecs_.values->rotation()) codecs_.values->rotation()->inverse(sum);
    return sum;
  }
  const LayerCodecs& codecs_;
  std::vector<Read> reads_;
  std::vector<std::vector<float>> keys_, values_;
};

/// |a - b| / |b|, infinite for NaN and for sizes that differ.
inline double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  double error = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i)
    error += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]), norm += static_cast<double>(b[i]) * b[i];
  const double relative = std::sqrt(error / std::max(norm, 1e-30));
  return std::isnan(relative) ? INFINITY : relative;
}

inline std::vector<float> normal(std::mt19937& rng, size_t n, float spread = 1, float mean = 0) {
  std::normal_distribution<float> d(mean, spread);
  std::vector<float> x(n);
  for (float& v : x) v = d(rng);
  return x;
}

}  // namespace tersor::kernels::cuda
