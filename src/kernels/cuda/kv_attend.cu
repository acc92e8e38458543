// The choice of an attention kernel and of how its work is cut.
#include "kernels/cuda/kv_attend.h"

#include <algorithm>

#include "kernels/cuda/kv_attend_variants.h"

namespace tersor::kernels::cuda {
namespace {

AttendVariant variant_for(Code keys, Code values, int dim, AttendUse use) {
  if (is_wide(keys)) switch (dim) {
      case 64: return attend_wide_variant_64(keys, values, use);
      case 80: return attend_wide_variant_80(keys, values, use);
      case 96: return attend_wide_variant_96(keys, values, use);
      case 128: return attend_wide_variant_128(keys, values, use);
      case 256: return attend_wide_variant_256(keys, values, use);
      default: return {};
    }
  switch (dim) {
    case 64: return attend_variant_64(keys, values, use);
    case 80: return attend_variant_80(keys, values, use);
    case 96: return attend_variant_96(keys, values, use);
    case 128: return attend_variant_128(keys, values, use);
    case 256: return attend_variant_256(keys, values, use);
    default: return {};
  }
}

// Splits that finish first when every processor takes one block at a time. In units of the time a block needs for a tile of each warp:
// a block costs about kFixed more, and the last block reads what every split wrote.
int best_splits(int tiles, long long units, int warps, int processors) {
  constexpr double kFixed = 4, kMerge = 0.08;
  constexpr int kMost = 64;
  int best = 1;
  double least = 1e300;
  for (int splits = 1; splits <= std::min(kMost, std::max(1, tiles)); ++splits) {
    const double waves = static_cast<double>((units * splits + processors - 1) / processors);
    const double tiles_of_warp = static_cast<double>((tiles + splits - 1) / splits + warps - 1) / warps;
    const double cost = waves * (kFixed + tiles_of_warp) + kMerge * splits;
    if (cost < least) least = cost, best = splits;
  }
  return best;
}

// Tiles that some row sees, and those that every row sees whole. Rows at later positions see later tokens.
void set_visibility(AttendSegment& s, const AttendParams& p) {
  const int tile = s.full ? codec::kFragmentFullTokens : codec::kFragmentTokens, last = p.position + p.rows - 1;
  const auto low = [&](int position) {
    const int lo = std::max({s.first, s.lo_abs, position + s.lo_rel});
    return (p.sliding_window > 0 ? std::max(lo, position - p.sliding_window + 1) : lo) - s.first;
  };
  const auto high = [&](int position) {
    const int hi = std::min(s.end, std::max(s.hi_abs, position + s.hi_rel));
    return (p.causal ? std::min(hi, position + 1) : hi) - s.first;
  };
  s.visit_begin = low(p.position) / tile;
  s.visit_end = std::max(s.visit_begin, (std::max(0, high(last)) + tile - 1) / tile);
  s.clear_begin = (low(last) + tile - 1) / tile;
  s.clear_end = p.mask == nullptr ? std::max(0, high(p.position)) / tile : 0;
}

}  // namespace

bool attend_supports(Code keys, Code values, int dim) { return variant_for(keys, values, dim, {}).function != nullptr; }

AttendPlan attend_plan(AttendParams& p, Code keys, Code values, int dim, int processors) {
  int tiles = 0;
  p.any_full = 0;
  for (int i = 0; i < p.segment_count; ++i) {
    AttendSegment& segment = p.segments[i];
    set_visibility(segment, p);
    segment.ordinal = tiles;
    p.any_full |= segment.full;
    tiles += segment.visit_end - segment.visit_begin;
  }
  const int vectors = p.group * p.rows;
  AttendUse use{vectors > 4, false, false};
  AttendVariant variant = variant_for(keys, values, dim, use);
  AttendPlan plan;
  if (variant.function == nullptr) return plan;
  const int per_block = 4 * variant.sets;
  const long long units = static_cast<long long>(p.batch) * p.kv_heads * ((vectors + per_block - 1) / per_block);
  constexpr int kLongShare = 512, kManyBlocks = 2;  // tiles of a processor; blocks of a processor
  use.many_blocks = units > kManyBlocks * processors;
  use.long_shares = static_cast<long long>(tiles) * units / processors > kLongShare;
  variant = variant_for(keys, values, dim, use);
  p.tiles = tiles;
  attend_split(p, plan, variant, dim, best_splits(tiles, units, variant.warps, processors * variant.resident));
  return plan;
}

void attend_split(AttendParams& p, AttendPlan& plan, const AttendVariant& variant, int dim, int splits) {
  const int vectors = 4 * variant.sets;
  p.sets = (p.group * p.rows + vectors - 1) / vectors;
  p.splits = splits, p.share = p.tiles / splits, p.longer_shares = p.tiles % splits;
  plan.launch.function = variant.function;
  plan.launch.grid = dim3(static_cast<unsigned>(splits), static_cast<unsigned>(p.kv_heads * p.sets), static_cast<unsigned>(p.batch));
  plan.launch.block = dim3(static_cast<unsigned>(variant.warps) * 32);
  plan.launch.shared_bytes = static_cast<unsigned>(variant.shared_bytes);
  plan.tickets = static_cast<size_t>(p.batch) * p.kv_heads * p.sets;
  plan.partial_floats = plan.tickets * splits * vectors * (dim + 2);
}

}  // namespace tersor::kernels::cuda
