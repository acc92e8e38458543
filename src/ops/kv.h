// Graph nodes of a layer's cache: buffers ("slabs") that hold encoded tokens, appending to them in place, attending over them.
#pragma once

#include <mlx/array.h>
#include <mlx/utils.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "codec/layout.h"
#include "codec/rotation.h"
#include "codec/stored_map.h"
#include "tersor/ops.h"

namespace tersor::ops {

/// How vectors and stored vectors are related in all slabs of a layer: the codecs of its compressed slabs and what goes with them.
struct KvBasis {
  using Codecs = std::vector<std::shared_ptr<const codec::Codec>>;
  /// One codec for all KV heads, or one each (of one form). Throws Error when a codec cannot hold a cache's values.
  KvBasis(Codecs keys, Codecs values);

  Codecs key_codecs, value_codecs;
  /// Applied before storing, undone by attention. `full` slabs beside a rotated one store rotated numbers too, so that all slabs of a
  /// layer live in one basis.
  const codec::Rotation* key_rotation = nullptr;
  const codec::Rotation* value_rotation = nullptr;
  /// Where the map is more than a rotation; `full` slabs then store numbers as they come, in a section of their own.
  std::optional<codec::StoredMap> key_map, value_map;
};

/// How one kind of slab stores keys and values. Immutable and shared.
struct KvFormat {
  /// Compressed as the basis says.
  explicit KvFormat(std::shared_ptr<const KvBasis> basis, codec::Arrangement arrangement = codec::Arrangement::lanes)
      : KvFormat(basis, basis->key_codecs[0], basis->value_codecs[0], codec::kFullBlockTokens, arrangement) {}
  /// In codecs of its own (`full` ones), beside slabs of that basis.
  KvFormat(std::shared_ptr<const KvBasis> basis, std::shared_ptr<const codec::Codec> key_codec,
           std::shared_ptr<const codec::Codec> value_codec, int full_block_tokens = codec::kFullBlockTokens,
           codec::Arrangement arrangement = codec::Arrangement::lanes);

  std::shared_ptr<const KvBasis> basis;
  codec::Layout keys, values;
  std::optional<codec::Role> only;  // one side alone: the other takes no room and is not written (measurements of encoding, CPU)
  bool sanitise = true;             // NaN becomes 0 and magnitudes are clamped before storing
  int batch = 1, heads = 1;
  mutable std::shared_ptr<const void> prepared;  // what a GPU plug-in makes of it once

  /// Tiles for a GPU: each block of keys is followed by the block of values of the same tokens.
  bool fragments() const { return keys.arrangement == codec::Arrangement::fragments; }
  /// Tokens a slab's capacity is a multiple of.
  int64_t granularity() const { return std::max(keys.block_tokens, values.block_tokens); }
  bool has(codec::Role role) const { return !only || *only == role; }
  /// Tokens whose keys are encoded together.
  int64_t key_group() const { return keys.codec->block_tokens(); }
  size_t side_bytes(codec::Role role, int64_t capacity) const {
    return has(role) ? (role == codec::Role::keys ? keys : values).bytes(capacity) : 0;
  }
  size_t head_bytes(int64_t capacity) const { return side_bytes(codec::Role::keys, capacity) + side_bytes(codec::Role::values, capacity); }
  size_t values_offset(int64_t capacity) const { return fragments() ? keys.block_bytes : side_bytes(codec::Role::keys, capacity); }
};

/// One buffer: uint8 [batch, heads, head_bytes]; of each head the blocks of keys, then those of values.
struct KvSlab {
  std::shared_ptr<const KvFormat> format;
  mx::array data;
  int64_t capacity = 0;  // tokens
  int64_t first = 0;     // position of its first token
  int64_t count = 0;     // tokens stored

  /// Zeroed; capacity is rounded up to the format's granularity.
  static KvSlab make(std::shared_ptr<const KvFormat> format, int64_t capacity, int64_t first);
};

/// Tokens [begin, begin + count) of the new keys and values go to slots [at, at + count) of a slab. Keys with groups of several tokens
/// (KvFormat::key_group) go there by whole groups.
struct KvWrite {
  KvSlab* slab;
  int64_t begin, count, at;
  std::optional<codec::Role> only = std::nullopt;  // one side alone (CPU and composed)
  bool writes(codec::Role role) const;             // that side of the slab
};

/// Encodes k and v ([B, L, H * D] tokens major or [B, H, L, D] heads major) into the slabs, in place: the slabs' arrays are replaced by
/// arrays that share their memory, so whatever reads them depends on the write. Each slab at most once. Slots that an earlier attention
/// read may be overwritten: `after` (the last attention's ticket) makes the write wait for it. centre: float32 [B, H, D], subtracted from
/// every key first.
/// v is not looked at where no write takes values.
void kv_append(std::span<const KvWrite> writes, const mx::array& k, const mx::array& v, const std::optional<mx::array>& after,
               const Choice& choice, const std::optional<mx::array>& centre = {}, mx::StreamOrDevice s = {});

/// The same, after queries and keys (before the centre is subtracted) have been turned at positions position, position + 1, ...; returns
/// the turned queries. GPU kernels only: one launch.
struct KvTurning {
  const mx::array& q;
  const RopeParams& rope;
  int64_t position;
};
mx::array kv_append_turned(std::span<const KvWrite> writes, const KvTurning& turn, const mx::array& k, const mx::array& v,
                           const std::optional<mx::array>& after, const std::optional<mx::array>& centre = {}, mx::StreamOrDevice s = {});

/// Drops a slab's first tokens, whole blocks, in place: the others move to its start once `after` is there. CPU only.
void kv_slide(KvSlab& slab, int64_t tokens, const std::optional<mx::array>& after, mx::StreamOrDevice s = {});

/// A slab as attention sees it: a row at position p sees tokens t with max(lo_abs, p + lo_rel) <= t < max(hi_abs, p + hi_rel);
/// unset bounds do not limit.
struct KvRead {
  const KvSlab* slab;
  std::optional<int64_t> lo_abs, lo_rel, hi_abs, hi_rel;
  bool grows = false;  // the tokens after these will be appended to it
};

struct KvAttended {
  mx::array out;     // like q, with the value dimension
  mx::array ticket;  // uint8 [1]: evaluated when the slabs have been read
};

/// Attention of query rows at positions position, position + 1, ... over the slabs. q is [B, L, Hq * D] or [B, Hq, L, D].
/// `earlier`: the ticket of another attention; the new ticket then stands for both.
KvAttended kv_attend(const mx::array& q, std::span<const KvRead> reads, const AttendOptions& options, int64_t position,
                     const Choice& choice, const std::optional<mx::array>& earlier = {}, mx::StreamOrDevice s = {});

/// The same in composed MLX operations (kernels "mlx (composed)").
void kv_append_composed(std::span<const KvWrite> writes, const mx::array& k, const mx::array& v, const std::optional<mx::array>& centre,
                        mx::StreamOrDevice s);
KvAttended kv_attend_composed(const mx::array& q, std::span<const KvRead> reads, const AttendOptions& options, int64_t position,
                              mx::StreamOrDevice s);

/// The vectors of tokens [begin, end) of a slab in lanes, as attention sees them: float32 [B, H, end - begin, dim]; keys without the centre
/// that was subtracted. Of keys behind a sketch or a smoothing, k with <q, k> = the score. In composed MLX operations.
mx::array kv_decode(const KvSlab& slab, codec::Role role, int64_t begin, int64_t end, mx::StreamOrDevice s = {});

}  // namespace tersor::ops
