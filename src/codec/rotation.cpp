#include "codec/rotation.h"

#include <array>
#include <cmath>

#include "tersor/base.h"

namespace tersor::codec {
namespace {

// Orders of the core matrices: Paley's construction I (order q + 1) needs a prime q = 3 mod 4, construction II (order 2q + 2) a prime q = 1
// mod 4.
struct Paley {
  int order, q;
};
constexpr std::array<Paley, 6> kCores = {{{12, 11}, {20, 19}, {28, 13}, {36, 17}, {44, 43}, {60, 59}}};

bool is_power_of_two(int n) { return n > 0 && (n & (n - 1)) == 0; }

// The core order for this size: 1 for powers of two, 0 when there is none.
int core_order(int dim) {
  if (is_power_of_two(dim)) return 1;
  for (const auto& paley : kCores)
    if (dim % paley.order == 0 && is_power_of_two(dim / paley.order)) return paley.order;
  return 0;
}

// Legendre symbol of i - j modulo q.
int jacobsthal(int i, int j, int q) {
  const int a = ((i - j) % q + q) % q;
  if (a == 0) return 0;
  for (int x = 1; x < q; ++x)
    if (x * x % q == a) return 1;
  return -1;
}

// The bordered Jacobsthal matrix of order q + 1 (zero diagonal): skew for q = 3 mod 4, symmetric for q = 1 mod 4.
int bordered(int row, int column, int q) {
  if (row == 0 && column == 0) return 0;
  if (row == 0) return 1;
  if (column == 0) return q % 4 == 3 ? -1 : 1;
  return jacobsthal(row - 1, column - 1, q);
}

std::vector<float> paley_matrix(int order) {
  if (order == 1) return {1.0f};
  int q = 0;
  for (const auto& paley : kCores)
    if (paley.order == order) q = paley.q;
  std::vector<float> h(static_cast<size_t>(order) * order);
  for (int r = 0; r < order; ++r)
    for (int c = 0; c < order; ++c) {
      int entry;
      if (q % 4 == 3) {
        entry = bordered(r, c, q) + (r == c);
      } else {  // entry 0 becomes [[1,-1],[-1,-1]], entry +-1 becomes +-[[1,1],[1,-1]]
        const int s = bordered(r / 2, c / 2, q), lower_right = r % 2 && c % 2, off = r % 2 != c % 2;
        entry = s ? s * (lower_right ? -1 : 1) : (lower_right || off ? -1 : 1);
      }
      h[static_cast<size_t>(r) * order + c] = static_cast<float>(entry);
    }
  return h;
}

uint64_t split_mix(uint64_t& state) {
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

void walsh_hadamard(std::span<double> x) {
  for (size_t half = 1; half < x.size(); half *= 2)
    for (size_t block = 0; block < x.size(); block += 2 * half)
      for (size_t i = block; i < block + half; ++i) {
        const double a = x[i], b = x[i + half];
        x[i] = a + b, x[i + half] = a - b;
      }
}

}  // namespace

bool Rotation::supports(int dim) { return core_order(dim) > 0; }

std::string Rotation::supported_sizes() {
  std::string text = "2^k";
  for (const auto& paley : kCores) text += ", " + std::to_string(paley.order) + "*2^k";
  return text;
}

Rotation::Rotation(int dim, int rounds, uint64_t seed) : dim_(dim), core_(core_order(dim)) {
  if (core_ == 0)
    throw Error("a Hadamard rotation of " + std::to_string(dim) + " dimensions does not exist here; sizes that work: " + supported_sizes());
  core_matrix_ = paley_matrix(core_);
  uint64_t state = seed, bits = 0;
  for (int i = 0; i < rounds * dim; ++i) {
    if (i % 64 == 0) bits = split_mix(state);
    signs_.push_back((bits >> (i % 64)) & 1 ? -1.0f : 1.0f);
  }
}

void Rotation::apply(std::span<double> x) const {
  const double norm = 1 / std::sqrt(static_cast<double>(dim_));
  std::vector<double> mixed(x.size());
  for (int round = 0; round < rounds(); ++round) {
    for (int i = 0; i < dim_; ++i) x[i] *= signs_[static_cast<size_t>(round) * dim_ + i] * norm;
    for (int row = 0; row < core_; ++row) walsh_hadamard(x.subspan(static_cast<size_t>(row) * power(), power()));
    std::fill(mixed.begin(), mixed.end(), 0.0);
    for (int r = 0; r < core_; ++r)
      for (int c = 0; c < core_; ++c)
        for (int i = 0; i < power(); ++i) mixed[r * power() + i] += core_matrix_[r * core_ + c] * x[c * power() + i];
    std::copy(mixed.begin(), mixed.end(), x.begin());
  }
}

void Rotation::inverse(std::span<double> x) const {
  const double norm = 1 / std::sqrt(static_cast<double>(dim_));
  std::vector<double> mixed(x.size());
  for (int round = rounds(); round-- > 0;) {
    std::fill(mixed.begin(), mixed.end(), 0.0);
    for (int r = 0; r < core_; ++r)
      for (int c = 0; c < core_; ++c)
        for (int i = 0; i < power(); ++i) mixed[c * power() + i] += core_matrix_[r * core_ + c] * x[r * power() + i];
    std::copy(mixed.begin(), mixed.end(), x.begin());
    for (int row = 0; row < core_; ++row) walsh_hadamard(x.subspan(static_cast<size_t>(row) * power(), power()));
    for (int i = 0; i < dim_; ++i) x[i] *= signs_[static_cast<size_t>(round) * dim_ + i] * norm;
  }
}

}  // namespace tersor::codec
