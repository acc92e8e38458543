#include "ops/pack.h"

#include <algorithm>
#include <string>

#include "base/thread_pool.h"
#include "kernels/cpu/pack.h"
#include "tersor/base.h"

namespace tersor::ops {
namespace {

constexpr size_t kPiece = size_t{1} << 15;  // numbers of a task, whole words at any width
constexpr size_t kMostLevels = 256;

// Streams: a thread finds its part of the arrays in its own cache again when the next call is about the same ones.
template <class F>
void in_pieces(size_t n, F&& f) {
  ThreadPool::instance().run_streams((n + kPiece - 1) / kPiece, [&](size_t task, size_t) {
    const size_t begin = task * kPiece;
    f(begin, std::min(kPiece, n - begin));
  });
}

void check_packing(size_t codes, int bits, size_t words) {
  if (bits < 1 || bits > 8) throw Error("codes of " + std::to_string(bits) + " bits cannot be packed: 1 to 8 can");
  if (const size_t bytes = kernels::packed_bytes(codes, bits); bytes != words * 4)
    throw Error(std::to_string(codes) + " codes of " + std::to_string(bits) + " bits take " + std::to_string(bytes / 4) + " words, not " +
                std::to_string(words));
}

void check_levels(size_t x, size_t codes, size_t levels) {
  if (x != codes) throw Error(std::to_string(x) + " numbers and " + std::to_string(codes) + " codes: give as many");
  if (levels < 2 || levels > kMostLevels) throw Error(std::to_string(levels) + " levels cannot be coded in bytes: 2 to 256 can");
}

}  // namespace

void pack_codes(std::span<const uint8_t> codes, int bits, std::span<uint32_t> words) {
  check_packing(codes.size(), bits, words.size());
  auto* bytes = reinterpret_cast<uint8_t*>(words.data());
  in_pieces(codes.size(), [&](size_t begin, size_t n) {
    kernels::pack_codes(codes.data() + begin, n, bits, bytes + begin * static_cast<size_t>(bits) / 8);
  });
}

void unpack_codes(std::span<const uint32_t> words, int bits, std::span<uint8_t> codes) {
  check_packing(codes.size(), bits, words.size());
  const auto* bytes = reinterpret_cast<const uint8_t*>(words.data());
  in_pieces(codes.size(), [&](size_t begin, size_t n) {
    kernels::unpack_codes(bytes + begin * static_cast<size_t>(bits) / 8, n, bits, codes.data() + begin);
  });
}

void quantise_levels(std::span<const float> x, std::span<const float> thresholds, std::span<uint8_t> codes) {
  check_levels(x.size(), codes.size(), thresholds.size() + 1);
  const int count = static_cast<int>(thresholds.size()) + 1;
  in_pieces(x.size(),
            [&](size_t begin, size_t n) { kernels::quantise_levels(x.data() + begin, n, thresholds.data(), count, codes.data() + begin); });
}

void dequantise_levels(std::span<const uint8_t> codes, std::span<const float> levels, std::span<float> x) {
  check_levels(x.size(), codes.size(), levels.size());
  in_pieces(x.size(), [&](size_t begin, size_t n) {
    kernels::dequantise_levels(codes.data() + begin, n, levels.data(), static_cast<int>(levels.size()), x.data() + begin);
  });
}

}  // namespace tersor::ops
