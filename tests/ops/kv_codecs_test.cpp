// Codecs whose stored vectors lie in another space than the vectors, or whose codes are not numbers: appending and attention, on every SIMD
// target and composed, against the codec's own reference and double precision.
#include <gtest/gtest.h>

#include <cstring>

#include "codec/calibrate.h"
#include "ops/kv_cases.h"

namespace tersor::test {
namespace {

using codec::Codec, codec::Role, codec::Spec;

constexpr int kHeads = 2;

// Keys of one codec, values of another.
struct Pair {
  std::string keys, values;
  int dim = 64;
  bool window = false;  // first and last tokens in full-precision slabs beside it
  int tokens = 150;     // whole groups where keys are encoded by channel
};
std::string name_of(const testing::TestParamInfo<Pair>& info) {
  std::string name =
      info.param.keys + "_and_" + info.param.values + "_" + std::to_string(info.param.dim) + (info.param.window ? "_window" : "");
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

// A codec for every head, calibrated on the head's vectors where it has to be.
ops::KvBasis::Codecs codecs_of(const std::string& name, Role role, const Rows& rows) {
  const Spec spec = Spec::parse(name);
  if (!codec::needs_calibration(spec)) return {Codec::make(spec, role, rows.dim)};
  ops::KvBasis::Codecs codecs;
  for (int h = 0; h < rows.heads; ++h) {
    const std::span<const float> vectors(rows.row(0, h, 0), static_cast<size_t>(rows.tokens) * rows.dim);
    const auto result = codec::calibrate(spec, role, rows.dim, vectors);
    codecs.push_back(Codec::make(spec, role, rows.dim, Dtype::f16, &result.calibration));
  }
  return codecs;
}
const Codec& codec_of(const ops::KvBasis::Codecs& codecs, int head) { return *codecs[codecs.size() == 1 ? 0 : static_cast<size_t>(head)]; }

class KvCodecs : public testing::TestWithParam<Pair> {
 protected:
  KvCodecs()
      : random(std::hash<std::string>()(GetParam().keys + GetParam().values)),
        tokens(GetParam().tokens),
        k(1, kHeads, tokens, dim()),
        v(1, kHeads, tokens, dim()) {
    std::normal_distribution<float> normal;
    for (Rows* rows : {&k, &v})
      for (float& x : rows->data) x = normal(random);
    for (int h = 0; h < kHeads; ++h)
      for (int t = 0; t < tokens; ++t) k.row(0, h, t)[5] *= 4, k.row(0, h, t)[40] *= 6;  // channels that stand out
    basis = std::make_shared<const ops::KvBasis>(codecs_of(GetParam().keys, Role::keys, k), codecs_of(GetParam().values, Role::values, v));
  }
  int dim() const { return GetParam().dim; }

  std::shared_ptr<const KvFormat> sized(KvFormat format) const {
    format.heads = kHeads;
    return std::make_shared<const KvFormat>(std::move(format));
  }
  KvSlab slab(std::shared_ptr<const KvFormat> format, int64_t first, int64_t count, const ops::Choice& choice) const {
    KvSlab s = KvSlab::make(std::move(format), count, first);
    const KvWrite write{&s, first, count, 0};
    ops::kv_append({&write, 1}, arranged(k, mx::float32, Arrangement::tokens_major), arranged(v, mx::float32, Arrangement::heads_major),
                   std::nullopt, choice);
    s.count = count;
    return s;
  }
  // The body and, with a window, tokens [0, 4) and the last 20 as they come.
  std::vector<KvSlab> slabs(const ops::Choice& choice) const {
    std::vector<KvSlab> all{slab(sized(KvFormat(basis)), 0, tokens, choice)};
    if (!GetParam().window) return all;
    const auto full = sized(KvFormat(basis, Codec::make(Spec::parse("full:fp32"), Role::keys, dim()),
                                     Codec::make(Spec::parse("full:fp32"), Role::values, dim()), 8));
    all.push_back(slab(full, 0, 4, choice));
    all.push_back(slab(full, tokens - 20, 20, choice));
    return all;
  }
  std::vector<KvRead> reads(const std::vector<KvSlab>& slabs) const {
    if (slabs.size() == 1) return {{&slabs[0], {}, {}, {}, {}}};
    return {{&slabs[0], 4, {}, tokens - 20, {}}, {&slabs[1], {}, {}, {}, {}}, {&slabs[2], {}, {}, {}, {}}};
  }

  // In double over what the slabs hold: q [1, group * heads, rows, dim].
  Rows expected(const std::vector<KvSlab>& slabs, const Rows& q, int64_t position) const {
    Rows out(1, q.heads, q.tokens, dim());
    const int group = q.heads / kHeads;
    for (int h = 0; h < q.heads; ++h)
      for (int r = 0; r < q.tokens; ++r) attend_row(slabs, h / group, q.row(0, h, r), position + r, out.row(0, h, r));
    return out;
  }

  Random random;
  int tokens;
  Rows k, v;
  std::shared_ptr<const ops::KvBasis> basis;

 private:
  void attend_row(const std::vector<KvSlab>& slabs, int head, const float* q, int64_t position, float* out) const {
    const auto size = static_cast<size_t>(dim());
    const std::vector<double> query(q, q + size);
    std::vector<std::pair<double, std::vector<double>>> seen;  // scores, and values in the original space
    const auto all_reads = reads(slabs);
    for (const KvRead& read : all_reads) {
      const KvFormat& f = *read.slab->format;
      const bool full = f.keys.family == codec::Family::full && f.values.family == codec::Family::full && slabs.size() > 1;
      const Codec &kc = full ? *f.keys.codec : codec_of(basis->key_codecs, head),
                  &vc = full ? *f.values.codec : codec_of(basis->value_codecs, head);
      const auto bytes = bytes_of(*read.slab);
      std::vector<double> mapped(static_cast<size_t>(kc.stored_dim()));
      kc.map_query(query, mapped);
      if (full && basis->key_rotation) basis->key_rotation->apply(mapped);
      for (int t = 0; t < read.slab->count; ++t) {
        if (!sees(read, {}, position, read.slab->first + t)) continue;
        std::vector<float> key(mapped.size()), value(static_cast<size_t>(vc.stored_dim()));
        decode(f.keys, kc, &bytes[blocks_at(*read.slab, true, 0, head)], t, key);
        decode(f.values, vc, &bytes[blocks_at(*read.slab, false, 0, head)], t, value);
        double score = 0;
        for (size_t i = 0; i < key.size(); ++i) score += mapped[i] * key[i];
        std::vector<double> stored(value.begin(), value.end()), output(size);
        if (full && basis->value_rotation) basis->value_rotation->inverse(stored);
        vc.map_output(stored, output);
        seen.push_back({score / std::sqrt(static_cast<double>(size)), output});
      }
    }
    double top = -1e300, total = 0;
    for (const auto& one : seen) top = std::max(top, one.first);
    std::vector<double> sum(size, 0.0);
    for (const auto& [score, value] : seen) {
      const double weight = std::exp(score - top);
      total += weight;
      for (size_t i = 0; i < size; ++i) sum[i] += weight * value[i];
    }
    for (size_t i = 0; i < size; ++i) out[i] = static_cast<float>(sum[i] / total);
  }
  // A head's codebook may be its own; a token may be one of a group.
  static void decode(const codec::Layout& layout, const Codec& codec, const uint8_t* blocks, int t, std::span<float> x) {
    if (layout.family == codec::Family::full) return layout.get_full(blocks, t, x);
    const int group = codec.block_tokens();
    std::vector<codec::Code> codes(static_cast<size_t>(group * codec.codes()));
    std::vector<float> scalars(static_cast<size_t>(codec.scalars())), all(x.size() * static_cast<size_t>(group));
    layout.get(blocks, t / group * group, codes, scalars);
    codec.decode(codes, scalars, all);
    std::copy_n(all.begin() + t % group * static_cast<int>(x.size()), x.size(), x.begin());
  }
};

double relative_error(const Rows& got, const Rows& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.data.size(); ++i) {
    error += (static_cast<double>(got.data[i]) - want.data[i]) * (static_cast<double>(got.data[i]) - want.data[i]);
    norm += static_cast<double>(want.data[i]) * want.data[i];
  }
  return std::sqrt(error / norm);
}

// Sums of hundreds of float terms are exact to 1e-6; queries and weights as 16-bit integers to a few 1e-5 (kv_attend_test.cpp).
TEST_P(KvCodecs, AttentionMatchesDouble) {
  for (const int rows : {1, 3, 40}) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    Rows q(1, 3 * kHeads, rows, dim());
    std::normal_distribution<float> normal;
    for (float& x : q.data) x = normal(random);
    const auto cache = slabs(kFast);
    const Rows want = expected(cache, q, tokens - rows);
    const auto attend = [&](const ops::Choice& choice) {
      const mx::array query = arranged(q, mx::float32, Arrangement::tokens_major);
      return rows_of(ops::kv_attend(query, reads(cache), {}, tokens - rows, choice).out, q.heads, dim());
    };
    EXPECT_LE(relative_error(attend(kComposed), want), 1e-5) << "composed";
    on_every_target([&](const std::string& target) {
      EXPECT_LE(relative_error(attend(kExact), want), 1e-5) << "exact " << target;
      EXPECT_LE(relative_error(attend(kFast), want), 2e-4) << "int16 " << target;
    });
  }
}

// Codes as the reference would choose them, but for numbers on a border.
TEST_P(KvCodecs, EncodingEqualsTheReference) {
  const auto differing = [&](const ops::Choice& choice, bool keys) {
    const KvSlab one = slab(sized(KvFormat(basis)), 0, tokens, choice);
    const codec::Layout& layout = keys ? one.format->keys : one.format->values;
    const auto bytes = bytes_of(one);
    double different = 0, all = 0;
    for (int h = 0; h < kHeads; ++h) {
      const Codec& codec = codec_of(keys ? basis->key_codecs : basis->value_codecs, h);
      const int group = codec.block_tokens();
      std::vector<codec::Code> codes(static_cast<size_t>(group * codec.codes())), want(codes.size());
      std::vector<float> scalars(static_cast<size_t>(codec.scalars())), want_scalars(scalars.size());
      for (int t = 0; t < tokens; t += group) {
        layout.get(&bytes[blocks_at(one, keys, 0, h)], t, codes, scalars);
        codec.encode({(keys ? k : v).row(0, h, t), static_cast<size_t>(group * dim())}, want, want_scalars);
        for (size_t i = 0; i < codes.size(); ++i) different += codes[i] != want[i];
        all += static_cast<double>(codes.size());
        for (size_t i = 0; i < scalars.size(); ++i) EXPECT_NEAR(scalars[i], want_scalars[i], 0.01 * std::abs(want_scalars[i]) + 1e-12);
      }
    }
    return different / all;
  };
  for (const bool keys : {true, false}) {
    if ((keys ? basis->key_codecs : basis->value_codecs)[0]->family() == codec::Family::full) continue;
    EXPECT_LE(differing(kComposed, keys), 2e-3) << "composed";
    on_every_target([&](const std::string& target) { EXPECT_LE(differing(kFast, keys), 2e-3) << target; });
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, KvCodecs,
    testing::Values(
        Pair{"turboquant-prod:3", "turboquant-prod:4"}, Pair{"turboquant-prod:1", "turboquant-prod:2", 96},
        Pair{"turboquant-prod:4", "turboquant:3", 128, true}, Pair{"turboquant-rvq:2+2", "turboquant-rvq:3+1"},
        Pair{"turboquant-rvq:4+4", "turboquant-rvq:4+4", 128, true}, Pair{"turboquant-rvq:3+2,book=joint", "turboquant-rvq:2+1,stages=1"},
        Pair{"turboquant:2.5", "turboquant:3.5"}, Pair{"turboquant:3.5", "turboquant:2.5", 128, true}, Pair{"qjl:128", "affine:2,group=32"},
        Pair{"qjl:64,sketch=gaussian", "full", 80}, Pair{"qjl:256,outliers=8", "turboquant:4", 128, true},
        Pair{"vecinfer:2,sub=4", "vecinfer:2,sub=4"}, Pair{"vecinfer:1.5,sub=4", "vecinfer:1.25,sub=8", 64, true}, Pair{"mxfp4", "mxfp4"},
        Pair{"mxfp8", "mxfp8", 96, true}, Pair{"mxfp4,rule=ocp", "mxfp8,rule=ocp", 80},
        Pair{"affine:4,rule=minmax", "affine:3,rule=minmax"}, Pair{"affine:2,group=32,axis=channel", "affine:2", 64, false, 160},
        Pair{"affine:3,axis=channel", "turboquant:4", 96, true, 192}, Pair{"affine:8,group=32,axis=channel", "full", 80, true, 160},
        Pair{"affine:4,axis=channel,rule=mlx", "affine:4", 128, false, 192},
        Pair{"affine:5,group=32,axis=channel", "turboquant-prod:2", 100, true, 224},
        Pair{"affine:6,group=32,axis=channel", "mxfp8", 256, false, 160},
        Pair{"turboquant:3,scalar=norm", "turboquant:4,scalar=norm", 112}),
    name_of);

}  // namespace
}  // namespace tersor::test
