#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "tersor/model.h"

namespace tersor::model {
namespace {

struct Candidate {
  float logit;   // after temperature, counted from the best one
  float weight;  // exp(logit): share in the softmax, not normalised; the best has 1
  int32_t id;
  // Better first; equal logits in the order of their ids, so that a pick does not depend on the sorting algorithm.
  bool operator<(const Candidate& other) const { return logit != other.logit ? logit > other.logit : id < other.id; }
};
using Candidates = std::vector<Candidate>;

[[noreturn]] void out_of_range(const char* name, double value, const char* range) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  throw Error(std::string(name) + " is " + text + ": give " + range);
}

void check(const Sampling& s) {
  if (!(s.temperature >= 0 && s.temperature <= 100)) out_of_range("temperature", s.temperature, "a number from 0 (greedy) to 100");
  if (s.top_k < 0) out_of_range("top-k", s.top_k, "0 (off) or more");
  if (!(s.top_p > 0 && s.top_p <= 1)) out_of_range("top-p", s.top_p, "a number above 0 and up to 1 (off)");
  if (!(s.min_p >= 0 && s.min_p <= 1)) out_of_range("min-p", s.min_p, "a number from 0 (off) to 1");
  if (!(s.repetition_penalty >= 0.01f && s.repetition_penalty <= 100))
    out_of_range("repetition penalty", s.repetition_penalty, "a number from 0.01 to 100 (1 is off)");
  if (s.repetition_window < 0) out_of_range("repetition window", s.repetition_window, "0 (off) or more tokens");
}

// The highest logit; throws for logits nobody can pick from.
int32_t best(std::span<const float> logits) {
  if (logits.empty()) throw Error("no logits to pick a token from");
  size_t at = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] < INFINITY))
      throw Error("the logit of token " + std::to_string(i) + " is not a finite number: the weights are damaged or overflow");
    if (logits[i] > logits[at]) at = i;
  }
  if (logits[at] == -INFINITY) throw Error("every token is ruled out: all logits are minus infinity");
  return static_cast<int32_t>(at);
}

// Tokens seen lately become less likely, each once however often it was seen: positive logits are divided, negative ones multiplied.
void penalise(std::span<float> logits, std::span<const int32_t> history, const Sampling& s) {
  const size_t window = std::min(history.size(), static_cast<size_t>(s.repetition_window));
  std::vector<int32_t> seen(history.end() - static_cast<ptrdiff_t>(window), history.end());
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  for (int32_t id : seen) {
    if (id < 0 || static_cast<size_t>(id) >= logits.size())
      throw Error("token " + std::to_string(id) + " of the history is outside the vocabulary of " + std::to_string(logits.size()));
    float& logit = logits[static_cast<size_t>(id)];
    logit = logit > 0 ? logit / s.repetition_penalty : logit * s.repetition_penalty;
  }
}

// The logits of all tokens that are not ruled out, or of the k best.
Candidates candidates_of(std::span<const float> logits, float top, float temperature, size_t k) {
  Candidates candidates;
  const bool all = k == 0 || k >= logits.size();
  candidates.reserve(all ? logits.size() : k + 1);
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] == -INFINITY) continue;
    const Candidate candidate{(logits[i] - top) / temperature, 0, static_cast<int32_t>(i)};
    if (!all && candidates.size() == k) {  // a heap whose front is the worst of the k best so far
      if (!(candidate < candidates.front())) continue;
      std::pop_heap(candidates.begin(), candidates.end());
      candidates.pop_back();
    }
    candidates.push_back(candidate);
    if (!all) std::push_heap(candidates.begin(), candidates.end());
  }
  for (auto& c : candidates) c.weight = std::exp(c.logit);
  return candidates;
}

double sum_of(std::span<const Candidate> candidates) {
  double sum = 0;
  for (const auto& c : candidates) sum += c.weight;
  return sum;
}

// Keeps the fewest candidates, best first, whose share reaches top_p. Candidates below (1 - top_p) / n of the sum hold less than
// 1 - top_p together and can never be among them. Among the others halving finds the place without sorting them.
void keep_top_p(Candidates& candidates, float top_p) {
  if (top_p >= 1) return;
  const double sum = sum_of(candidates), least = sum * (1.0 - top_p) / static_cast<double>(candidates.size());
  std::erase_if(candidates, [&](const Candidate& c) { return c.weight < least; });
  double missing = top_p * sum;
  auto begin = candidates.begin(), end = candidates.end();
  while (end - begin > 16) {  // better ones lie before begin, worse ones from end on
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end);
    const double better = sum_of({begin, middle});
    if (better >= missing) {
      end = middle;
    } else {
      missing -= better;
      begin = middle;
    }
  }
  std::sort(begin, end);
  while (begin != end && missing > 0) missing -= (begin++)->weight;
  candidates.erase(begin, candidates.end());
}

void keep_min_p(Candidates& candidates, float min_p) {
  if (min_p > 0) std::erase_if(candidates, [&](const Candidate& c) { return c.weight < min_p; });
}

// SplitMix64; the top 53 bits as a number in [0, 1).
double next_uniform(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

int32_t draw(const Candidates& candidates, uint64_t& state) {
  double rest = next_uniform(state) * sum_of(candidates);
  for (const auto& c : candidates)
    if ((rest -= c.weight) < 0) return c.id;
  return std::min_element(candidates.begin(), candidates.end())->id;  // rounding left a crumb at the end
}

}  // namespace

Sampler::Sampler(const Sampling& sampling) : sampling_(sampling), state_(sampling.seed) { check(sampling); }

int32_t Sampler::pick(std::span<const float> logits, std::span<const int32_t> history) {
  const bool penalty = sampling_.repetition_penalty != 1 && sampling_.repetition_window > 0 && !history.empty();
  std::vector<float> changed;
  if (penalty) {
    changed.assign(logits.begin(), logits.end());
    penalise(changed, history, sampling_);
    logits = changed;
  }
  const int32_t top_id = best(logits);
  if (sampling_.temperature == 0) return top_id;

  Candidates candidates =
      candidates_of(logits, logits[static_cast<size_t>(top_id)], sampling_.temperature, static_cast<size_t>(sampling_.top_k));
  keep_top_p(candidates, sampling_.top_p);
  keep_min_p(candidates, sampling_.min_p);
  return draw(candidates, state_);
}

}  // namespace tersor::model
