// What a layer's cache consists of.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ops/kv.h"
#include "tersor/cache.h"

namespace tersor::cache {

/// Tokens the recent window keeps beyond `window`, so that short rewinds (speculative decoding) stay exact.
inline constexpr int64_t kRewindMargin = 8;
/// The recent window takes at least this much room; a larger one grows as tokens come.
inline constexpr int64_t kLeastRoom = 256;
/// Tokens a block of the recent window and of the sinks. Small: a window of 24 tokens should not take the room of 48.
inline constexpr int kRecentBlockTokens = 8, kSinkBlockTokens = 4;
/// Growth steps of the body, in tokens: a quarter of what it holds, within these bounds.
inline constexpr int64_t kLeastStep = 64, kMostStep = 2048, kMostStepOnGpu = 1 << 16;
/// A GPU attends to so many slabs in one launch at most (besides sinks and window); the body is joined into one before it has more.
inline constexpr size_t kMostSlabs = 6;

/// Every token is encoded into the body as it arrives (its key perhaps later: key_group), at its position. The first `sinks` tokens and the
/// most recent ones are also kept in full precision, in the body's (rotated) basis; attention reads each token from the best place it has,
/// by position, so the result does not depend on how tokens were grouped into calls.
struct LayerCache::State {
  codec::Spec keys, values;
  int64_t window = 0, sinks = 0;  // in effect: 0 where everything is full precision anyway, at least a group of keys
  LayerShape shape;
  Dtype full_dtype = Dtype::f16;
  ops::Choice append_choice, attend_choice;

  std::shared_ptr<const ops::KvFormat> body_format, sink_format, recent_format;
  std::vector<ops::KvSlab> body;         // consecutive
  std::optional<ops::KvSlab> sink_slab;  // positions [0, sinks)
  std::optional<ops::KvSlab> recent;     // positions [recent->first, tokens)
  std::optional<mx::array> ticket;       // of all attention since the last append: what overwrites slots waits for it
  int64_t tokens = 0;
  /// What is subtracted from every key, [B, H, D] float32; set by the first tokens or by calibration where keys ask for it (centre=).
  std::optional<mx::array> centre;
  std::string calibration;  // digest_of the one in use, or empty

  int64_t capacity() const { return body.empty() ? 0 : body.back().first + body.back().capacity; }
  /// Keys whose scales belong to channels (axis=channel) are encoded a group of tokens at a time. Until a group is full its keys are in the
  /// window alone, which is at least that long, and begins no later than the first of them.
  int64_t key_group() const { return body_format->key_group(); }
  int64_t unfinished_group() const { return tokens / key_group() * key_group(); }
};

}  // namespace tersor::cache
