// Caches to test with, and attention over them in double precision.
#pragma once

#include <mlx/mlx.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/simd_target.h"
#include "ops/kv.h"
#include "tersor/ops.h"

namespace tersor::test {

namespace mx = mlx::core;
using ops::AttendOptions, ops::KvBasis, ops::KvFormat, ops::KvRead, ops::KvSlab, ops::KvWrite;

inline const ops::Choice kFast{.op = {}, .problem = {}, .kernel = {}, .fast = true, .reason = {}, .precision = ops::Precision::int16};
inline const ops::Choice kExact{.op = {}, .problem = {}, .kernel = {}, .fast = true, .reason = {}};
inline const ops::Choice kComposed{.op = {}, .problem = {}, .kernel = {}, .fast = false, .reason = {}};

using Random = std::mt19937;

template <class T>
T pick(Random& random, const std::vector<T>& from) {
  return from[random() % from.size()];
}
inline int64_t pick_between(Random& random, int64_t lo, int64_t hi) { return lo + static_cast<int64_t>(random() % (hi - lo + 1)); }
inline bool one_in(Random& random, unsigned n) { return random() % n == 0; }

/// Runs `body` once for every SIMD target of this machine, then returns to the best.
inline void on_every_target(const std::function<void(const std::string&)>& body) {
  for (const std::string& target : kernels::available_simd_targets()) {
    kernels::force_simd_target(target);
    body(target);
  }
  kernels::force_simd_target("");
}

/// Numbers [batch][heads][tokens][dim].
struct Rows {
  int batch, heads, tokens, dim;
  std::vector<float> data;
  Rows(int b, int h, int t, int d) : batch(b), heads(h), tokens(t), dim(d), data(static_cast<size_t>(b) * h * t * d) {}
  float* row(int b, int h, int t) { return &data[((static_cast<size_t>(b) * heads + h) * tokens + t) * dim]; }
  const float* row(int b, int h, int t) const { return const_cast<Rows*>(this)->row(b, h, t); }
};

/// Normal numbers around a mean of each head's own, so that mixed-up heads show.
inline Rows normal_rows(Random& random, int batch, int heads, int tokens, int dim) {
  Rows rows(batch, heads, tokens, dim);
  std::normal_distribution<float> normal;
  for (int b = 0; b < batch; ++b)
    for (int h = 0; h < heads; ++h)
      for (int t = 0; t < tokens; ++t)
        for (int d = 0; d < dim; ++d) rows.row(b, h, t)[d] = normal(random) + 0.25f * static_cast<float>(h - 2 * b);
  return rows;
}

/// Rounds to the numbers that the dtype has.
inline void round_to(Rows& rows, mx::Dtype dtype) {
  for (float& x : rows.data) {
    if (dtype == mx::float16) x = half_to_float(float_to_half(x));
    if (dtype == mx::bfloat16) x = bfloat_to_float(float_to_bfloat(x));
  }
}

enum class Arrangement { tokens_major, heads_major, heads_of_tokens, strided, strided_tokens };
inline const std::vector<Arrangement> kArrangements = {Arrangement::tokens_major, Arrangement::heads_major, Arrangement::heads_of_tokens,
                                                       Arrangement::strided, Arrangement::strided_tokens};

/// The rows as a lazy array in one of the accepted arrangements, the strided ones as views of other arrays.
inline mx::array arranged(const Rows& rows, mx::Dtype dtype, Arrangement arrangement) {
  const mx::array plain = mx::astype(mx::array(rows.data.data(), {rows.batch, rows.heads, rows.tokens, rows.dim}, mx::float32), dtype);
  const mx::Shape flat{rows.batch, rows.tokens, rows.heads * rows.dim};
  switch (arrangement) {
    case Arrangement::heads_major: return plain;
    case Arrangement::tokens_major: return mx::reshape(mx::swapaxes(plain, 1, 2), flat);
    case Arrangement::heads_of_tokens: return mx::swapaxes(mx::contiguous(mx::swapaxes(plain, 1, 2)), 1, 2);
    case Arrangement::strided: return mx::swapaxes(mx::contiguous(mx::swapaxes(plain, 2, 3)), 2, 3);
    case Arrangement::strided_tokens:
      return mx::swapaxes(mx::contiguous(mx::swapaxes(mx::reshape(mx::swapaxes(plain, 1, 2), flat), 1, 2)), 1, 2);
  }
  return plain;
}

/// An attention result in any arrangement as rows.
inline Rows rows_of(const mx::array& x, int heads, int dim) {
  mx::array y = x;
  if (x.ndim() == 3) y = mx::swapaxes(mx::reshape(y, {y.shape(0), y.shape(1), heads, dim}), 1, 2);
  y = mx::contiguous(mx::astype(y, mx::float32));
  y.eval();
  Rows rows(y.shape(0), heads, y.shape(2), dim);
  std::copy_n(y.data<float>(), rows.data.size(), rows.data.begin());
  return rows;
}

struct FormatOptions {
  std::string keys = "full", values = "full";
  int key_dim = 64, value_dim = 64, batch = 1, heads = 1;
  bool sanitise = true;
  std::string rotated_like = {};  // rotations of this codec, for a full slab beside it
};

inline std::shared_ptr<const KvFormat> make_format(const FormatOptions& o) {
  using codec::Codec, codec::Role, codec::Spec;
  const auto keys = Codec::make(Spec::parse(o.keys), Role::keys, o.key_dim),
             values = Codec::make(Spec::parse(o.values), Role::values, o.value_dim);
  const auto like = [&](const auto& codec, Role role, int dim) {
    return o.rotated_like.empty() ? codec : Codec::make(Spec::parse(o.rotated_like), role, dim);
  };
  const auto basis = std::make_shared<const KvBasis>(KvBasis::Codecs{like(keys, Role::keys, o.key_dim)},
                                                     KvBasis::Codecs{like(values, Role::values, o.value_dim)});
  auto format = std::make_shared<KvFormat>(basis, keys, values);
  format->sanitise = o.sanitise;
  format->batch = o.batch, format->heads = o.heads;
  return format;
}

/// Appends rows [begin, begin + count) to a slab whose tokens are stored in order.
inline void append(KvSlab& slab, const mx::array& k, const mx::array& v, int64_t begin, int64_t count, const ops::Choice& choice) {
  const KvWrite write{&slab, begin, count, slab.count};
  ops::kv_append({&write, 1}, k, v, std::nullopt, choice);
  slab.count += count;
}

inline std::vector<uint8_t> bytes_of(const KvSlab& slab) {
  mx::array data = slab.data;
  data.eval();
  return {data.data<uint8_t>(), data.data<uint8_t>() + data.nbytes()};
}

/// The blocks of one head's keys or values within the slab's bytes.
inline size_t blocks_at(const KvSlab& slab, bool keys, int b, int h) {
  const KvFormat& f = *slab.format;
  return (static_cast<size_t>(b) * f.heads + h) * f.head_bytes(slab.capacity) + (keys ? 0 : f.values_offset(slab.capacity));
}

/// All stored keys or values, in the stored basis; zeros for keys of a group that is not full.
inline Rows decoded(const KvSlab& slab, bool keys) {
  const KvFormat& f = *slab.format;
  const codec::Layout& layout = keys ? f.keys : f.values;
  const auto bytes = bytes_of(slab);
  Rows rows(f.batch, f.heads, static_cast<int>(slab.count), layout.dim);
  for (int b = 0; b < f.batch; ++b)
    for (int h = 0; h < f.heads; ++h)
      for (int t = 0, step = layout.codec->block_tokens(); t + step <= rows.tokens; t += step)
        layout.decode(&bytes[blocks_at(slab, keys, b, h)], t, {rows.row(b, h, t), static_cast<size_t>(step * layout.dim)});
  return rows;
}

/// The largest product of a value's norm or scale with a level or code.
inline double largest_code_value(const KvSlab& slab) {
  const KvFormat& f = *slab.format;
  const codec::Layout& layout = f.values;
  const auto bytes = bytes_of(slab);
  std::vector<codec::Code> codes(layout.dim);
  std::vector<float> scalars(layout.scalar_rows);
  double most = 0;
  if (layout.family == codec::Family::full) return 0;
  const double code = layout.family == codec::Family::turboquant ? layout.codec->levels().back() : (1 << layout.bits) - 1;
  for (int b = 0; b < f.batch; ++b)
    for (int h = 0; h < f.heads; ++h)
      for (int64_t t = 0; t < slab.count; ++t) {
        layout.get(&bytes[blocks_at(slab, false, b, h)], t, codes, scalars);
        const int factors = layout.family == codec::Family::turboquant ? 1 : layout.groups;
        for (int i = 0; i < factors; ++i) most = std::max(most, std::abs(scalars[i]) * code);
      }
  return most;
}

/// Additive mask of every query row and token position, [batch][heads][rows][tokens].
using FullMask = Rows;

inline bool sees(const KvRead& read, const AttendOptions& o, int64_t position, int64_t token) {
  constexpr int64_t kFar = int64_t{1} << 40;
  const int64_t lo = std::max(read.lo_abs.value_or(-kFar), read.lo_rel ? position + *read.lo_rel : -kFar);
  int64_t hi = kFar;
  if (read.hi_abs || read.hi_rel) hi = std::max(read.hi_abs.value_or(-kFar), read.hi_rel ? position + *read.hi_rel : -kFar);
  if (token < lo || token >= hi || (o.causal && token > position)) return false;
  return o.sliding_window == 0 || token > position - o.sliding_window;
}

/// Attention in double over the numbers that the slabs hold.
class Oracle {
 public:
  Oracle(const std::vector<KvRead>& reads, const AttendOptions& options)
      : reads_(reads), options_(options), format_(*reads[0].slab->format) {
    for (const KvRead& read : reads) keys_.push_back(decoded(*read.slab, true)), values_.push_back(decoded(*read.slab, false));
  }

  /// sinks: one logit a query head, or empty.
  Rows attend(const Rows& q, int64_t position, const FullMask* mask, const std::vector<float>& sinks) const {
    Rows out(q.batch, q.heads, q.tokens, format_.values.dim);
    for (int b = 0; b < q.batch; ++b)
      for (int h = 0; h < q.heads; ++h)
        for (int t = 0; t < q.tokens; ++t) attend_row(q, b, h, t, position, mask, sinks, out.row(b, h, t));
    return out;
  }
  double largest_value() const {
    double most = 0;
    for (const Rows& values : values_)
      for (const float x : values.data) most = std::max(most, static_cast<double>(std::abs(x)));
    return most;
  }

 private:
  struct Seen {
    double score;
    const float* value;
  };

  void attend_row(const Rows& q, int b, int h, int t, int64_t position, const FullMask* mask, const std::vector<float>& sinks,
                  float* out) const {
    std::vector<double> query(q.row(b, h, t), q.row(b, h, t) + q.dim), sum(format_.values.dim, 0.0);
    if (format_.basis->key_rotation) format_.basis->key_rotation->apply(query);
    const std::vector<Seen> seen = scores(query, b, h, position + t, mask ? mask->row(b, h, t) : nullptr, q.heads / format_.heads);
    double top = sinks.empty() ? -std::numeric_limits<double>::infinity() : sinks[h];
    for (const Seen& one : seen) top = std::max(top, one.score);
    double total = sinks.empty() ? 0 : std::exp(sinks[h] - top);
    for (const Seen& one : seen) {
      const double weight = std::exp(one.score - top);
      total += weight;
      for (size_t d = 0; d < sum.size(); ++d) sum[d] += weight * one.value[d];
    }
    for (double& x : sum) x = total > 0 ? x / total : 0;
    if (format_.basis->value_rotation) format_.basis->value_rotation->inverse(sum);
    std::copy(sum.begin(), sum.end(), out);
  }

  std::vector<Seen> scores(const std::vector<double>& query, int b, int h, int64_t position, const float* mask, int group) const {
    const double scale = options_.scale != 0 ? options_.scale : 1 / std::sqrt(static_cast<double>(query.size()));
    std::vector<Seen> seen;
    for (size_t i = 0; i < reads_.size(); ++i) {
      const KvSlab& slab = *reads_[i].slab;
      for (int t = 0; t < slab.count; ++t) {
        const int64_t token = slab.first + t;
        if (!sees(reads_[i], options_, position, token)) continue;
        if (mask && mask[token] == -std::numeric_limits<float>::infinity()) continue;
        double score = 0;
        const float* key = keys_[i].row(b, h / group, t);
        for (size_t d = 0; d < query.size(); ++d) score += query[d] * key[d];
        score *= scale;
        if (options_.soft_cap > 0) score = options_.soft_cap * std::tanh(score / options_.soft_cap);
        seen.push_back({score + (mask ? mask[token] : 0.0), values_[i].row(b, h / group, t)});
      }
    }
    return seen;
  }

  std::vector<KvRead> reads_;
  AttendOptions options_;
  const KvFormat& format_;
  std::vector<Rows> keys_, values_;
};

/// Largest difference; infinite when either holds NaN.
inline double largest_error(const Rows& a, const Rows& b) {
  double most = 0;
  for (size_t i = 0; i < a.data.size(); ++i) {
    const double error = std::abs(static_cast<double>(a.data[i]) - b.data[i]);
    if (!(error <= most)) most = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
  }
  return most;
}

/// Codecs of every family, bits and group.
inline std::vector<std::string> all_codecs() {
  std::vector<std::string> list{"full:fp16", "full:bf16", "full:fp32"};
  for (const char* bits : {"2", "3", "4", "5", "6", "8"})
    for (const char* group : {"32", "64", "128"}) list.push_back(std::string("affine:") + bits + ",group=" + group);
  for (const char* bits : {"1", "2", "3", "4", "5", "6"}) list.push_back(std::string("turboquant:") + bits);
  list.push_back("turboquant:3,rounds=1,seed=7");
  return list;
}
inline bool is_turboquant(const std::string& name) { return name.starts_with("turboquant"); }
inline bool is_full(const std::string& name) { return name.starts_with("full"); }

}  // namespace tersor::test
