// Distance between the logits of two runs of one model over the same tokens.
#pragma once

#include <span>
#include <vector>

#include "tersor/model.h"

namespace tersor::model {

/// One row of logits against another, in double precision.
struct RowDistance {
  double kl = 0;                        // KL(full || other), natural logarithm
  double error_sum = 0, error_max = 0;  // of |full - other| over the vocabulary
  double nll_full = 0, nll = 0;         // -log p(target); 0 without a target
  bool same_top = false;                // equal argmax; of equal logits the lowest id counts
  bool finite = true;                   // false: a logit is not finite and the rest means nothing
};
/// target: the token that really follows, or -1.
RowDistance compare_rows(std::span<const float> full, std::span<const float> other, int32_t target);

/// Collects rows. Numbers of the result: KL and errors are those of the worst row (max), the mean over rows, and for p99 the
/// nearest rank; the mean logit error is over all rows and the whole vocabulary. Perplexities are over rows that have a target.
class FidelityMeter {
 public:
  /// Rows of `vocab` logits each, compared in parallel; targets[i] belongs to row i. Throws Error when a logit is not finite.
  void add(std::span<const float> full, std::span<const float> other, std::span<const int32_t> targets);
  Fidelity result() const;

 private:
  std::vector<double> kl_;
  double nll_full_ = 0, nll_ = 0, error_sum_ = 0, error_max_ = 0;
  int64_t targets_ = 0, same_top_ = 0;
  double entries_ = 0;
};

}  // namespace tersor::model
