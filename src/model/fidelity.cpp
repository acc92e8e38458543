#include "model/fidelity.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "base/thread_pool.h"

namespace tersor::model {
namespace {

size_t argmax(std::span<const float> row) {
  size_t at = 0;
  for (size_t i = 1; i < row.size(); ++i)
    if (row[i] > row[at]) at = i;
  return at;
}

}  // namespace

RowDistance compare_rows(std::span<const float> full, std::span<const float> other, int32_t target) {
  RowDistance d;
  for (size_t i = 0; i < full.size(); ++i) {
    const double error = std::abs(static_cast<double>(full[i]) - other[i]);
    if (!(error < INFINITY)) d.finite = false;
    d.error_sum += error;
    d.error_max = std::max(d.error_max, error);
  }
  if (!d.finite) return d;
  const size_t top_full = argmax(full), top = argmax(other);
  d.same_top = top_full == top;

  const double max_full = full[top_full], max_other = other[top];
  double sum_full = 0, sum_other = 0, weighted = 0;  // weighted: sum of exp(full) * (full - other), each from its maximum
  for (size_t i = 0; i < full.size(); ++i) {
    const double a = full[i] - max_full, b = other[i] - max_other;
    const double p = std::exp(a);
    sum_full += p;
    sum_other += std::exp(b);
    weighted += p * (a - b);
  }
  const double log_full = std::log(sum_full), log_other = std::log(sum_other);
  d.kl = std::max(0.0, weighted / sum_full - log_full + log_other);  // below 0 only by rounding
  if (target >= 0) {
    d.nll_full = max_full + log_full - full[static_cast<size_t>(target)];
    d.nll = max_other + log_other - other[static_cast<size_t>(target)];
  }
  return d;
}

void FidelityMeter::add(std::span<const float> full, std::span<const float> other, std::span<const int32_t> targets) {
  const size_t rows = targets.size(), vocab = rows ? full.size() / rows : 0;
  if (full.size() != other.size() || full.size() != rows * vocab || vocab == 0)
    throw Error("logits of " + std::to_string(full.size()) + " and " + std::to_string(other.size()) +
                " numbers cannot be compared row by row");
  std::vector<RowDistance> distances(rows);
  ThreadPool::instance().run(rows, [&](size_t row, size_t) {
    distances[row] = compare_rows(full.subspan(row * vocab, vocab), other.subspan(row * vocab, vocab), targets[row]);
  });
  for (size_t row = 0; row < rows; ++row) {
    const RowDistance& d = distances[row];
    if (!d.finite)
      throw Error("a logit at position " + std::to_string(kl_.size()) + " is not a finite number: the weights are damaged or overflow");
    kl_.push_back(d.kl);
    error_sum_ += d.error_sum;
    error_max_ = std::max(error_max_, d.error_max);
    same_top_ += d.same_top;
    if (targets[row] < 0) continue;
    nll_full_ += d.nll_full;
    nll_ += d.nll;
    ++targets_;
  }
  entries_ += static_cast<double>(full.size());
}

Fidelity FidelityMeter::result() const {
  Fidelity f;
  f.positions = static_cast<int64_t>(kl_.size());
  if (kl_.empty()) return f;
  const double rows = static_cast<double>(kl_.size());
  std::vector<double> sorted = kl_;
  std::sort(sorted.begin(), sorted.end());
  f.kl_mean = std::accumulate(sorted.begin(), sorted.end(), 0.0) / rows;
  f.kl_p99 = sorted[static_cast<size_t>(std::ceil(0.99 * rows)) - 1];
  f.kl_max = sorted.back();
  f.top1_agreement = static_cast<double>(same_top_) / rows;
  f.logit_error_mean = error_sum_ / entries_;
  f.logit_error_max = error_max_;
  if (targets_) {
    f.perplexity = std::exp(nll_ / static_cast<double>(targets_));
    f.perplexity_full = std::exp(nll_full_ / static_cast<double>(targets_));
  }
  return f;
}

// The worst position decides: a mean would hide the one token that goes wrong.
std::vector<std::string> Fidelity::strict_failed() const {
  std::vector<std::string> failed;
  const auto require = [&](bool kept, const char* name) {
    if (!kept) failed.emplace_back(name);
  };
  require(positions > 0, "positions");
  require(top1_agreement == 1, "top1_agreement");
  require(kl_max <= kStrictKlMax, "kl_max");
  require(logit_error_mean <= kStrictLogitErrorMean, "logit_error_mean");
  require(logit_error_max <= kStrictLogitErrorMax, "logit_error_max");
  return failed;
}

}  // namespace tersor::model
