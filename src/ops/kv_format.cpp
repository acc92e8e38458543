#include "ops/kv.h"

namespace tersor::ops {
namespace {

using codec::Family;

void check_values(const codec::Codec& codec) {
  if (codec.block_tokens() == 1) return;
  codec::Spec by_token = codec.spec();
  by_token.axis = codec::Axis::token, by_token.rule.reset();
  throw Error("codec " + codec.spec().str() + " cannot hold a cache's values: axis=channel is for keys, whose channels differ; write " +
              codec.spec().str() + "/" + by_token.str());
}

const codec::Rotation* plain_rotation(const codec::Codec& codec) { return codec::StoredMap::needed(codec) ? nullptr : codec.rotation(); }

std::optional<codec::StoredMap> map_of(const KvBasis::Codecs& codecs) {
  if (!codec::StoredMap::needed(*codecs[0])) return std::nullopt;
  return codec::StoredMap(codecs, codec::Layout(codecs[0]));
}

}  // namespace

KvBasis::KvBasis(Codecs keys, Codecs values) : key_codecs(std::move(keys)), value_codecs(std::move(values)) {
  check_values(*value_codecs[0]);
  key_rotation = plain_rotation(*key_codecs[0]), value_rotation = plain_rotation(*value_codecs[0]);
  key_map = map_of(key_codecs), value_map = map_of(value_codecs);
}

KvFormat::KvFormat(std::shared_ptr<const KvBasis> of, std::shared_ptr<const codec::Codec> key_codec,
                   std::shared_ptr<const codec::Codec> value_codec, int full_block_tokens, codec::Arrangement arrangement)
    : basis(std::move(of)),
      keys(std::move(key_codec), full_block_tokens, arrangement),
      values(std::move(value_codec), full_block_tokens, arrangement) {
  if (keys.family == Family::full && basis->key_map) keys.stored_begin = basis->key_map->full_begin;
  if (values.family == Family::full && basis->value_map) values.stored_begin = basis->value_map->full_begin;
  if (fragments()) keys.stride = values.stride = keys.block_bytes + values.block_bytes;
}

}  // namespace tersor::ops
