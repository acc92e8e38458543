#include "codec/rotation.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "codec/random.h"

namespace tersor::codec {
namespace {

// Orders of the core matrices: Paley's construction I (order q + 1) needs a prime q = 3 mod 4, construction II (order 2q + 2) a prime q = 1
// mod 4.
struct Paley {
  int order, q;
};
constexpr std::array<Paley, 6> kCores = {{{12, 11}, {20, 19}, {28, 13}, {36, 17}, {44, 43}, {60, 59}}};

bool is_power_of_two(int n) { return n > 0 && (n & (n - 1)) == 0; }

// The core order for this size: 1 for powers of two, the odd part where there is no Hadamard matrix.
int core_order(int dim) {
  if (is_power_of_two(dim)) return 1;
  for (const auto& paley : kCores)
    if (dim % paley.order == 0 && is_power_of_two(dim / paley.order)) return paley.order;
  while (dim % 2 == 0) dim /= 2;
  return dim;
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

// The orthogonal cosine transform, scaled like a Hadamard matrix.
std::vector<double> cosine_matrix(int order) {
  std::vector<double> h(static_cast<size_t>(order) * order, 1.0);
  for (int r = 1; r < order; ++r)
    for (int c = 0; c < order; ++c) h[static_cast<size_t>(r) * order + c] = std::sqrt(2.0) * std::cos(M_PI * r * (2 * c + 1) / (2 * order));
  return h;
}

std::vector<double> core_of(int order) {
  if (order == 1) return {1.0};
  int q = 0;
  for (const auto& paley : kCores)
    if (paley.order == order) q = paley.q;
  if (q == 0) return cosine_matrix(order);
  std::vector<double> h(static_cast<size_t>(order) * order);
  for (int r = 0; r < order; ++r)
    for (int c = 0; c < order; ++c) {
      int entry;
      if (q % 4 == 3) {
        entry = bordered(r, c, q) + (r == c);
      } else {  // entry 0 becomes [[1,-1],[-1,-1]], entry +-1 becomes +-[[1,1],[1,-1]]
        const int s = bordered(r / 2, c / 2, q), lower_right = r % 2 && c % 2, off = r % 2 != c % 2;
        entry = s ? s * (lower_right ? -1 : 1) : (lower_right || off ? -1 : 1);
      }
      h[static_cast<size_t>(r) * order + c] = entry;
    }
  return h;
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

bool Rotation::is_hadamard(int dim) {
  if (dim < 1) return false;
  const int core = core_order(dim);
  return core == 1 || std::any_of(kCores.begin(), kCores.end(), [core](const Paley& paley) { return paley.order == core; });
}

Rotation::Rotation(int dim, int rounds, uint64_t seed) : dim_(dim), core_(core_order(dim)), exact_core_(core_of(core_)) {
  core_matrix_.assign(exact_core_.begin(), exact_core_.end());
  uint64_t state = seed, bits = 0;
  for (int i = 0; i < rounds * dim; ++i) {
    if (i % 64 == 0) bits = split_mix(state);
    signs_.push_back((bits >> (i % 64)) & 1 ? -1.0f : 1.0f);
  }
}

Rotation Rotation::without_signs(int dim) {
  Rotation rotation(dim, 1, 0);
  std::fill(rotation.signs_.begin(), rotation.signs_.end(), 1.0f);
  return rotation;
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
        for (int i = 0; i < power(); ++i) mixed[r * power() + i] += exact_core_[static_cast<size_t>(r) * core_ + c] * x[c * power() + i];
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
        for (int i = 0; i < power(); ++i) mixed[c * power() + i] += exact_core_[static_cast<size_t>(r) * core_ + c] * x[r * power() + i];
    std::copy(mixed.begin(), mixed.end(), x.begin());
    for (int row = 0; row < core_; ++row) walsh_hadamard(x.subspan(static_cast<size_t>(row) * power(), power()));
    for (int i = 0; i < dim_; ++i) x[i] *= signs_[static_cast<size_t>(round) * dim_ + i] * norm;
  }
}

}  // namespace tersor::codec
