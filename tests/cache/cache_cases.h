// Keys, values and queries to fill caches with, and attention in double precision that knows which tokens are full precision.
#pragma once

#include <algorithm>
#include <numeric>

#include "cache/layer_state.h"
#include "cache/slabs.h"
#include "ops/kv_cases.h"
#include "tersor/cache.h"

namespace tersor::cache {

using ops::Policy;
using test::Random, test::Rows;

inline const std::vector<Policy> kPolicies = {Policy::automatic, Policy::forbid};

/// A layer's setting.
struct Setting {
  std::string keys = "turboquant:4", values = "turboquant:4";
  int window = 0, sinks = 0;
  Policy policy = Policy::automatic;
  ops::Precision precision = ops::Precision::exact;  // these tests ask which tokens are read, to the last digits
  LayerShape shape{1, 2, 64, 64};
  Dtype full_dtype = Dtype::f32;
  int query_heads = 6;

  LayerCache make() const {
    return LayerCache(codec::Spec::parse(keys), codec::Spec::parse(values), window, sinks, shape, full_dtype, policy, precision);
  }
  std::string str() const {
    return keys + " / " + values + " window " + std::to_string(window) + " sinks " + std::to_string(sinks) + " " +
           std::string(name_of(policy)) + " batch " + std::to_string(shape.batch) + " " + std::string(name_of(full_dtype));
  }
};

/// Tokens [begin, begin + count) of rows.
inline Rows part(const Rows& rows, int begin, int count) {
  Rows result(rows.batch, rows.heads, count, rows.dim);
  for (int b = 0; b < rows.batch; ++b)
    for (int h = 0; h < rows.heads; ++h) std::copy_n(rows.row(b, h, begin), static_cast<size_t>(count) * rows.dim, result.row(b, h, 0));
  return result;
}

inline mx::array array_of(const Rows& rows) { return test::arranged(rows, mx::float32, test::Arrangement::tokens_major); }

/// One conversation: keys, values and queries of `tokens` tokens.
struct Conversation {
  Setting setting;
  Rows k, v, q;
  Conversation(const Setting& s, int tokens, unsigned seed) : Conversation(s, tokens, Random(seed)) {}

  int tokens() const { return k.tokens; }
  void append(LayerCache& cache, int begin, int count) const {
    cache.append(array_of(part(k, begin, count)), array_of(part(v, begin, count)));
  }
  /// Rows [begin, begin + count), the last of the cache.
  Rows attend(LayerCache& cache, int begin, int count, const AttendOptions& options = {}) const {
    return test::rows_of(cache.attend(array_of(part(q, begin, count)), options), q.heads, v.dim);
  }
  /// Appends and attends tokens [begin, end) in chunks; the outputs of all rows.
  Rows run(LayerCache& cache, int begin, int end, int chunk) const {
    Rows out(q.batch, q.heads, end - begin, v.dim);
    for (int at = begin; at < end; at += chunk) {
      const int count = std::min(chunk, end - at);
      append(cache, at, count);
      const Rows some = attend(cache, at, count);
      for (int b = 0; b < out.batch; ++b)
        for (int h = 0; h < out.heads; ++h) std::copy_n(some.row(b, h, 0), static_cast<size_t>(count) * v.dim, out.row(b, h, at - begin));
    }
    return out;
  }

 private:
  Conversation(const Setting& s, int tokens, Random random)
      : setting(s),
        k(test::normal_rows(random, s.shape.batch, s.shape.kv_heads, tokens, s.shape.key_dim)),
        v(test::normal_rows(random, s.shape.batch, s.shape.kv_heads, tokens, s.shape.value_dim)),
        q(test::normal_rows(random, s.shape.batch, s.query_heads, tokens, s.shape.key_dim)) {}
};

/// Attention in double precision. The codes are taken from the cache (their quality is the codec's own test); which tokens a row sees
/// in full precision is decided here: the first `sinks`, and for a row at p those in (p - window, p], where a window is at least a group
/// of keys that are encoded together.
class Expected {
 public:
  Expected(const Conversation& talk, const LayerCache& cache)
      : talk_(talk),
        format_(*cache.state().body_format),
        window_(std::max(talk.setting.window, static_cast<int>(format_.keys.codec->block_tokens() > 1 ? format_.key_group() : 0))),
        body_(joined(cache.state().body)),
        coded_keys_(test::decoded(body_, true)),
        coded_values_(test::decoded(body_, false)),
        keys_(rotated(talk.k, format_.basis->key_rotation)),
        values_(rotated(talk.v, format_.basis->value_rotation)) {}

  /// Of the tokens before this one, only the sinks are left in full precision.
  void window_begins_at(int token) { window_first_ = token; }

  Rows rows(int begin, int count) const {
    const Rows& q = talk_.q;
    Rows out(q.batch, q.heads, count, talk_.v.dim);
    for (int b = 0; b < q.batch; ++b)
      for (int h = 0; h < q.heads; ++h)
        for (int i = 0; i < count; ++i) row(b, h, begin + i, out.row(b, h, i));
    return out;
  }

 private:
  static Rows rotated(Rows rows, const codec::Rotation* rotation) {
    if (!rotation) return rows;
    for (size_t at = 0; at < rows.data.size(); at += rows.dim) {
      std::vector<double> x(rows.data.begin() + at, rows.data.begin() + at + rows.dim);
      rotation->apply(x);
      std::copy(x.begin(), x.end(), rows.data.begin() + at);
    }
    return rows;
  }
  bool full(int token, int position) const { return token < talk_.setting.sinks || (token > position - window_ && token >= window_first_); }

  void row(int b, int h, int position, float* out) const {
    const Rows& q = talk_.q;
    const int kv_head = h / (q.heads / talk_.k.heads);
    std::vector<double> query(q.row(b, h, position), q.row(b, h, position) + q.dim), sum(talk_.v.dim, 0.0), scores;
    if (format_.basis->key_rotation) format_.basis->key_rotation->apply(query);
    for (int t = 0; t <= position; ++t) {
      const float* key = (full(t, position) ? keys_ : coded_keys_).row(b, kv_head, t);
      scores.push_back(std::inner_product(query.begin(), query.end(), key, 0.0) / std::sqrt(static_cast<double>(q.dim)));
    }
    const double top = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    for (int t = 0; t <= position; ++t) {
      const double weight = std::exp(scores[t] - top);
      const float* value = (full(t, position) ? values_ : coded_values_).row(b, kv_head, t);
      total += weight;
      for (size_t d = 0; d < sum.size(); ++d) sum[d] += weight * value[d];
    }
    for (double& x : sum) x /= total;
    if (format_.basis->value_rotation) format_.basis->value_rotation->inverse(sum);
    std::copy(sum.begin(), sum.end(), out);
  }

  const Conversation& talk_;
  const ops::KvFormat& format_;
  int window_;
  ops::KvSlab body_;
  Rows coded_keys_, coded_values_, keys_, values_;
  int window_first_ = 0;
};

/// The encoded tokens without spare room, as bytes; stale bytes after the last token are not compared by using whole-token decoding.
inline std::vector<uint8_t> body_bytes(const LayerCache& cache) { return test::bytes_of(joined(cache.state().body)); }

/// Every stored number of the body, keys then values.
inline std::vector<float> body_numbers(const LayerCache& cache) {
  const ops::KvSlab body = joined(cache.state().body);
  std::vector<float> all = test::decoded(body, true).data;
  const std::vector<float> values = test::decoded(body, false).data;
  all.insert(all.end(), values.begin(), values.end());
  return all;
}

}  // namespace tersor::cache
