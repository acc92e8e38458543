// The same transformer in plain loops and double precision, straight from the definitions.
#pragma once

#include <cmath>
#include <numbers>
#include <span>
#include <string>
#include <vector>

#include "model/rope_frequencies.h"
#include "tersor/model.h"

namespace tersor::model::testing {

class ReferenceTransformer {
 public:
  explicit ReferenceTransformer(const ModelData& data)
      : data_(data), c_(data.config), frequencies_(rope_inverse_frequencies(data.config)) {}

  // [L][vocab]
  std::vector<std::vector<double>> logits(std::span<const int32_t> tokens) const {
    Rows x;
    for (int32_t token : tokens) {
      const float* row =
          data_.linears.at("model.embed_tokens").weight.data<float>() + static_cast<size_t>(token) * static_cast<size_t>(c_.hidden);
      x.emplace_back(row, row + c_.hidden);
    }
    for (int i = 0; i < c_.layers; ++i) layer(x, "model.layers." + std::to_string(i) + ".");
    Rows out;
    for (const auto& row : x) out.push_back(linear(norm(row, "model.norm"), c_.tied_head ? "model.embed_tokens" : "lm_head"));
    return out;
  }

 private:
  using Row = std::vector<double>;
  using Rows = std::vector<Row>;

  Row norm(const Row& x, const std::string& name) const {
    double sum = 0;
    for (double v : x) sum += v * v;
    const double scale = 1 / std::sqrt(sum / static_cast<double>(x.size()) + c_.norm_eps);
    const float* weight = data_.vectors.at(name).data<float>();
    Row y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * weight[i];
    return y;
  }

  Row linear(const Row& x, const std::string& name) const {
    const ops::LinearWeight& w = data_.linears.at(name);
    Row y(static_cast<size_t>(w.out_features()));
    for (size_t o = 0; o < y.size(); ++o) {
      y[o] = w.bias ? w.bias->data<float>()[o] : 0;
      for (size_t i = 0; i < x.size(); ++i) y[o] += x[i] * w.weight.data<float>()[o * x.size() + i];
    }
    return y;
  }

  // Splits a row into heads, norms each if the family does, and turns it.
  Rows heads(const Row& x, const std::string& norm_name, size_t position) const {
    const size_t size = static_cast<size_t>(c_.head_dim), half = frequencies_.size();
    Rows result;
    for (size_t at = 0; at < x.size(); at += size) {
      Row head(x.begin() + static_cast<ptrdiff_t>(at), x.begin() + static_cast<ptrdiff_t>(at + size));
      if (c_.qk_norm) head = norm(head, norm_name);
      for (size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * frequencies_[i], a = head[i], b = head[i + half];
        head[i] = a * std::cos(angle) - b * std::sin(angle);
        head[i + half] = a * std::sin(angle) + b * std::cos(angle);
      }
      result.push_back(head);
    }
    return result;
  }

  // Keys of one KV head are keys[position][head]; values the same, not turned.
  Row attend(const Rows& q, const std::vector<Rows>& keys, const Rows& values, size_t position) const {
    const size_t size = static_cast<size_t>(c_.head_dim), first = c_.sliding_window && position + 1 > static_cast<size_t>(c_.sliding_window)
                                                                      ? position + 1 - static_cast<size_t>(c_.sliding_window)
                                                                      : 0;
    Row out(q.size() * size);
    for (size_t h = 0; h < q.size(); ++h) {
      const size_t kv = h / static_cast<size_t>(c_.heads / c_.kv_heads);
      double sum = 0;
      for (size_t p = first; p <= position; ++p) {
        double dot = 0;
        for (size_t i = 0; i < size; ++i) dot += q[h][i] * keys[p][kv][i];
        const double weight = std::exp(dot / std::sqrt(static_cast<double>(size)));
        sum += weight;
        for (size_t i = 0; i < size; ++i) out[h * size + i] += weight * values[p][kv * size + i];
      }
      for (size_t i = 0; i < size; ++i) out[h * size + i] /= sum;
    }
    return out;
  }

  void layer(Rows& x, const std::string& p) const {
    std::vector<Rows> queries, keys;
    Rows values;
    for (size_t i = 0; i < x.size(); ++i) {
      const Row h = norm(x[i], p + "input_layernorm");
      queries.push_back(heads(linear(h, p + "self_attn.q_proj"), p + "self_attn.q_norm", i));
      keys.push_back(heads(linear(h, p + "self_attn.k_proj"), p + "self_attn.k_norm", i));
      values.push_back(linear(h, p + "self_attn.v_proj"));
    }
    for (size_t i = 0; i < x.size(); ++i) {
      add(x[i], linear(attend(queries[i], keys, values, i), p + "self_attn.o_proj"));
      const Row h = norm(x[i], p + "post_attention_layernorm");
      Row gate = linear(h, p + "mlp.gate_proj");
      const Row up = linear(h, p + "mlp.up_proj");
      for (size_t j = 0; j < gate.size(); ++j) gate[j] = activated(gate[j]) * up[j];
      add(x[i], linear(gate, p + "mlp.down_proj"));
    }
  }

  double activated(double v) const {
    if (c_.activation == Activation::gelu) return v / 2 * std::erfc(-v / std::sqrt(2.0));
    if (c_.activation == Activation::gelu_tanh)
      return v / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (v + 0.044715 * v * v * v)));
    return v / (1 + std::exp(-v));
  }

  static void add(Row& x, const Row& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  const ModelData& data_;
  const Config& c_;
  std::vector<float> frequencies_;
};

}  // namespace tersor::model::testing
