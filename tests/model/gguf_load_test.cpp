#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mlx/ops.h>

#include <functional>

#include "gguf_writer.h"
#include "model/gguf_types.h"
#include "tersor/model.h"

namespace tersor::model::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class GgufLoad : public ::testing::Test {
 protected:
  ModelData load_file(const GgufFile& file) { return load(folder_.write("model.gguf", file.bytes())); }

  std::string error_of(const std::string& bytes) {
    const auto path = folder_.write("model.gguf", bytes);
    try {
      load(path);
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_THAT(text, HasSubstr(path.string()));
      EXPECT_THAT(text, Not(HasSubstr("\n")));
      return text;
    }
    return "loaded";
  }
  std::string error_of(const GgufFile& file) { return error_of(file.bytes()); }
  std::string error_with(const std::function<void(GgufFile&)>& change) {
    GgufFile file = tiny_llama();
    change(file);
    return error_of(file);
  }

  TemporaryFolder folder_;
};

TEST_F(GgufLoad, ReadsConfigurationAndTokenizer) {
  const ModelData data = load_file(tiny_llama());
  const Config& c = data.config;
  EXPECT_EQ(c.family, "llama");
  EXPECT_EQ(std::tuple(c.layers, c.hidden, c.intermediate, c.heads, c.kv_heads, c.head_dim), std::tuple(1, 64, 96, 2, 1, 32));
  EXPECT_EQ(std::tuple(c.vocab, c.context, c.rotary_dims, c.tied_head), std::tuple(40, 128, 32, true));
  EXPECT_FLOAT_EQ(c.rope_theta, 50000);
  EXPECT_EQ(data.format, "gguf");
  EXPECT_EQ(data.linears.size(), 8u);
  EXPECT_EQ(data.vectors.size(), 3u);
  const auto& t = data.tokenizer;
  EXPECT_EQ(t.tokens.size(), 40u);
  EXPECT_EQ(t.eos, 0);
  EXPECT_EQ(t.end_tokens, std::vector<int32_t>{0});
  ASSERT_EQ(t.added.size(), 2u);
  EXPECT_TRUE(t.added[0].special);
  EXPECT_FALSE(t.added[1].special);
}

TEST_F(GgufLoad, MissingOptionalKeysAreDerived) {
  GgufFile file = tiny_llama();
  for (const char* key :
       {"llama.attention.head_count_kv", "llama.rope.freq_base", "llama.context_length", "tokenizer.ggml.pre", "tokenizer.ggml.token_type"})
    file.set(key, "");
  for (const char* name : {"blk.0.attn_k.weight", "blk.0.attn_v.weight"}) {
    file.tensor(name).dims = {64, 64};
    file.tensor(name).data += file.tensor(name).data;
  }
  const ModelData data = load_file(file);
  EXPECT_EQ(data.config.kv_heads, 2);
  EXPECT_FLOAT_EQ(data.config.rope_theta, 10000);
  EXPECT_EQ(data.config.context, 2048);
}

TEST_F(GgufLoad, MissingRequiredKeysAreNamed) {
  for (const char* key : {"general.architecture", "llama.block_count", "llama.embedding_length", "llama.feed_forward_length",
                          "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon", "tokenizer.ggml.model"})
    EXPECT_THAT(error_with([&](GgufFile& f) { f.set(key, ""); }), HasSubstr(key)) << key;
}

TEST_F(GgufLoad, ValuesThatCannotBeAreNamed) {
  const auto with = [&](const char* key, const std::string& value) { return error_with([&](GgufFile& f) { f.set(key, value); }); };
  EXPECT_THAT(with("llama.attention.head_count", value_u32(0)), HasSubstr("llama.attention.head_count is 0"));
  EXPECT_THAT(with("llama.attention.head_count", value_u32(3)), HasSubstr("not a multiple"));
  EXPECT_THAT(with("llama.block_count", value_u32(0xffffffffu)), HasSubstr("llama.block_count is 4294967295"));
  EXPECT_THAT(with("llama.block_count", value_u32(0x7fffffffu)), HasSubstr("2147483647 layers"));
  EXPECT_THAT(with("llama.embedding_length", value_f32(64)), HasSubstr("of type f32"));
  EXPECT_THAT(with("llama.attention.layer_norm_rms_epsilon", value_f32(-1)), HasSubstr("epsilon"));
  EXPECT_THAT(with("tokenizer.ggml.eos_token_id", value_u32(40)), HasSubstr("eos_token_id"));
  EXPECT_THAT(with("tokenizer.ggml.model", value_string("llama")), HasSubstr("SentencePiece"));
  EXPECT_THAT(with("tokenizer.ggml.pre", value_string("some\nthing")), HasSubstr("tokenizer.ggml.pre"));
  EXPECT_THAT(with("tokenizer.ggml.merges", value_strings({"ab"})), HasSubstr("merges"));
  EXPECT_THAT(with("general.architecture", value_string("gemma3")),
              HasSubstr("\"gemma3\" is not supported; supported: llama, qwen2, qwen3"));
  EXPECT_THAT(with("split.count", value_u32(3)), HasSubstr("split into 3 files"));
  EXPECT_THAT(with("llama.rope.scaling.type", value_string("yarn")), HasSubstr("\"yarn\""));
  EXPECT_THAT(with("llama.expert_count", value_u32(8)), HasSubstr("mixture-of-experts"));
  EXPECT_THAT(with("general.alignment", value_u32(48)), HasSubstr("general.alignment is 48"));
}

TEST_F(GgufLoad, TensorsMustFitTheConfiguration) {
  EXPECT_THAT(error_with([](GgufFile& f) { f.remove("blk.0.ffn_up.weight"); }), HasSubstr("blk.0.ffn_up.weight [96, 64] is missing"));
  EXPECT_THAT(error_with([](GgufFile& f) {
                f.tensor("blk.0.ffn_up.weight").dims = {96, 64};
              }),
              HasSubstr("blk.0.ffn_up.weight has shape [64, 96], but the configuration needs [96, 64]"));
  EXPECT_THAT(error_with([](GgufFile& f) {
                f.tensors.push_back({"blk.0.attn_q.bias", {64}, 0, std::string(256, '\0'), -1});
              }),
              HasSubstr("blk.0.attn_k.bias"));
  EXPECT_THAT(error_with([](GgufFile& f) {
                f.tensors.push_back({"blk.0.attn_q_norm.weight", {32}, 0, std::string(128, '\0'), -1});
              }),
              HasSubstr("blk.0.attn_q_norm.weight"));
}

TEST_F(GgufLoad, UnsupportedTypesAreNamedWhereTheyAreNeeded) {
  const auto q6 = [](GgufFile& f, const char* name, std::vector<uint64_t> dims) {
    f.tensors.push_back({name, dims, 14, std::string(210 * 40, '\0'), -1});
  };
  EXPECT_EQ(error_with([&](GgufFile& f) { q6(f, "blk.0.attn_rot_embd.weight", {256, 40}); }), "loaded");
  EXPECT_THAT(error_with([&](GgufFile& f) { q6(f, "unused.weight", {256, 40}); }), HasSubstr("unused.weight is not part of"));
  EXPECT_THAT(error_with([&](GgufFile& f) {
                f.remove("blk.0.ffn_down.weight");
                q6(f, "blk.0.ffn_down.weight", {256, 40});
              }),
              HasSubstr("blk.0.ffn_down.weight is Q6_K, which is not supported yet; supported: F32, F16, BF16, Q8_0, Q4_0, Q4_1"));
  EXPECT_THAT(error_with([](GgufFile& f) { f.tensor("blk.0.ffn_down.weight").type = 77; }), HasSubstr("is type 77"));
}

TEST_F(GgufLoad, ContainerErrorsAreNamed) {
  EXPECT_THAT(error_with([](GgufFile& f) { f.keys.push_back(f.keys[0]); }), HasSubstr("occurs twice"));
  EXPECT_THAT(error_with([](GgufFile& f) { f.keys.emplace_back("", value_u32(1)); }), HasSubstr("empty name"));
  EXPECT_THAT(error_with([](GgufFile& f) { f.tensors.push_back(f.tensors[1]); }), HasSubstr("\"output_norm.weight\" occurs twice"));
  EXPECT_THAT(error_with([](GgufFile& f) { f.tensors[1].name.clear(); }), HasSubstr("empty name"));
  EXPECT_THAT(error_with([](GgufFile& f) { f.tensors[1].offset = 64; }), HasSubstr("overlap"));
  EXPECT_THAT(error_with([](GgufFile& f) { f.tensors[1].offset = 4; }), HasSubstr("not aligned"));
  EXPECT_THAT(error_with([](GgufFile& f) { f.tensors[1].offset = INT64_MAX / 32 * 32; }), HasSubstr("past the end"));
  EXPECT_THAT(error_with([](GgufFile& f) { f.tensors[1].dims = {1u << 30, 1u << 30, 1u << 30}; }), HasSubstr("not possible"));
  EXPECT_THAT(error_with([](GgufFile& f) { f.tensors[1].dims = {1u << 30, 1u << 20}; }), HasSubstr("the file has"));
  EXPECT_THAT(error_with([](GgufFile& f) { f.tensors[1].dims = {0}; }), HasSubstr("dimension of 0"));
  EXPECT_THAT(error_with([](GgufFile& f) { f.tensors[1].dims.clear(); }), HasSubstr("0 dimensions"));
  EXPECT_THAT(error_with([](GgufFile& f) { f.keys.emplace_back("x", encode<uint32_t>(13)); }), HasSubstr("unknown value type 13"));
  EXPECT_THAT(error_with([](GgufFile& f) { f.extra_tensors = uint64_t{1} << 63; }), HasSubstr("more than"));
  EXPECT_THAT(error_with([](GgufFile& f) { f.extra_keys = 0xffffffff; }), HasSubstr("more than"));
  std::string nested = encode<uint32_t>(9);
  for (int i = 0; i < 20; ++i) nested += encode<uint32_t>(9) + encode<uint64_t>(1);
  EXPECT_THAT(error_with([&](GgufFile& f) { f.keys.emplace_back("x", nested); }), HasSubstr("nested"));
  EXPECT_THAT(
      error_with([](GgufFile& f) { f.keys.emplace_back("x", encode<uint32_t>(9) + encode<uint32_t>(8) + encode(uint64_t{1} << 61)); }),
      HasSubstr("more than the file can hold"));
  EXPECT_THAT(error_with([](GgufFile& f) { f.keys.emplace_back("x", encode<uint32_t>(8) + encode(~uint64_t{0})); }),
              HasSubstr("the file ends"));
}

TEST_F(GgufLoad, OtherContentIsRecognised) {
  EXPECT_THAT(error_of("<!DOCTYPE html><html>"), HasSubstr("HTML page"));
  EXPECT_THAT(error_of("version https://git-lfs.github.com/spec/v1\n"), HasSubstr("git-lfs pointer"));
  EXPECT_THAT(error_of("PK\x03\x04 some zip"), HasSubstr("zip archive"));
  EXPECT_THAT(error_of("\x80\x02}q"), HasSubstr("pickle"));
  EXPECT_THAT(error_of(encode<uint64_t>(2) + "{}"), HasSubstr("safetensors"));
  EXPECT_THAT(error_of("{\"a\": 1}"), HasSubstr("JSON"));
  EXPECT_THAT(error_of("GG"), HasSubstr("bytes 47 47"));
  EXPECT_THAT(error_of(""), HasSubstr("empty"));
  EXPECT_THAT(error_with([](GgufFile& f) { f.version = 0x03000000; }), HasSubstr("big-endian"));
  EXPECT_THAT(error_with([](GgufFile& f) { f.version = 1; }), HasSubstr("version 1"));
  EXPECT_THROW(load(folder_.path() / "nothing.gguf"), Error);
}

TEST_F(GgufLoad, UndoesTheRowOrderOfLlamaForWeightsAndBiasesOnly) {
  for (const std::string family : {"llama", "qwen2"}) {
    GgufFile file = tiny_llama();
    for (auto& [key, value] : file.keys) {
      if (key.starts_with("llama.")) key = family + key.substr(5);
      if (key == "general.architecture") value = value_string(family);
    }
    for (const std::string part : {"q", "k", "v"}) {
      const uint64_t rows = part == "q" ? 64 : 32;
      std::string bias, weight;
      for (uint64_t row = 0; row < rows; ++row) {
        bias += encode(static_cast<float>(row));
        for (int col = 0; col < 64; ++col) weight += encode(static_cast<float>(row));
      }
      file.tensor("blk.0.attn_" + part + ".weight").data = weight;
      file.tensors.push_back({"blk.0.attn_" + part + ".bias", {rows}, 0, bias, -1});
    }
    const ModelData data = load_file(file);
    EXPECT_TRUE(data.config.qkv_bias);
    for (const std::string part : {"q", "k", "v"}) {
      const auto& linear = data.linears.at("model.layers.0.self_attn." + part + "_proj");
      for (int row = 0; row < linear.out_features(); ++row) {
        const int within = row % 32;
        const int source = family == "llama" && part != "v" ? row / 32 * 32 + within % 16 * 2 + within / 16 : row;
        EXPECT_EQ(linear.weight.data<float>()[row * 64], static_cast<float>(source)) << family << part << row;
        EXPECT_EQ(linear.bias->data<float>()[row], static_cast<float>(source)) << family << part << row;
      }
    }
  }
}

TEST_F(GgufLoad, RopeFactors) {
  GgufFile file = tiny_llama();
  std::string factors;
  for (int i = 0; i < 16; ++i) factors += encode(1.0f + static_cast<float>(i));
  file.tensors.push_back({"rope_freqs.weight", {16}, 0, factors, -1});
  EXPECT_EQ(load_file(file).config.rope_freq_factors.size(), 16u);
  std::memset(file.tensors.back().data.data(), 0, 4);
  EXPECT_THAT(error_of(file), HasSubstr("rope_freqs.weight"));
}

TEST_F(GgufLoad, IdentityFollowsTheWeights) {
  GgufFile file = tiny_llama();
  const auto first = load_file(file).identity, second = load_file(file).identity;
  EXPECT_EQ(first, second);
  file.tensor("output_norm.weight").data[0] ^= 1;
  EXPECT_NE(load_file(file).identity.at("weights"), first.at("weights"));
}

TEST_F(GgufLoad, InspectShowsWhatCannotRun) {
  GgufFile file = tiny_llama();
  file.set("general.architecture", value_string("gemma3"));
  const auto inspection = inspect(folder_.write("model.gguf", file.bytes()));
  EXPECT_EQ(inspection.tensors.size(), 11u);
  EXPECT_EQ(inspection.facts.back().first, "runs");
  EXPECT_THAT(inspection.facts.back().second, HasSubstr("no: "));
  EXPECT_THAT(inspection.facts.back().second, HasSubstr("gemma3"));
}

TEST_F(GgufLoad, TokenizersWhosePartsDoNotFitAreNamedWithTheirFile) {
  GgufFile file = tiny_llama();
  file.set("tokenizer.ggml.merges", value_strings({}));
  EXPECT_EQ(inspect(folder_.write("model.gguf", file.bytes())).facts.back().second, "yes");
  const auto path = folder_.write("model.gguf", tiny_llama().bytes());  // its merge is of tokens that it lacks
  const std::string words = path.string() + ": tokenizer: merge 0";
  EXPECT_THAT(inspect(path).facts.back().second, testing::AllOf(HasSubstr("no: " + words), HasSubstr("fetch it again")));
  ModelData data = load(path);
  try {
    take_tokenizer(data);
    FAIL() << "not refused";
  } catch (const Error& error) { EXPECT_THAT(error.what(), testing::StartsWith(words)); }
}

TEST(GgufTypes, QuantisedBlocksBecomeAffine) {
  // One block with every code once or twice, written by the definition of the format.
  const auto check = [](uint32_t type, const std::string& block, const std::function<float(int)>& expected) {
    const auto weight = gguf::make_matrix(type, std::as_bytes(std::span(block)), 1, 32, {}, "test");
    const auto values = mx::astype(mx::dequantize(weight.weight, *weight.scales, weight.biases, 32, weight.bits), mx::float32);
    for (int i = 0; i < 32; ++i)
      EXPECT_FLOAT_EQ(mx::astype(mx::slice(values, {0, i}, {1, i + 1}), mx::float32).item<float>(), expected(i)) << type << " " << i;
  };
  std::string nibbles, bytes;
  for (int i = 0; i < 16; ++i) nibbles += static_cast<char>(i | (15 - i) << 4);
  for (int i = 0; i < 32; ++i) bytes += static_cast<char>(i * 8 - 128);
  const auto code = [](int i) { return static_cast<float>(i < 16 ? i : 31 - i); };
  check(2, encode(float_to_half(0.5f)) + nibbles, [&](int i) { return 0.5f * (code(i) - 8); });
  check(3, encode(float_to_half(0.25f)) + encode(float_to_half(-3.0f)) + nibbles, [&](int i) { return 0.25f * code(i) - 3; });
  check(8, encode(float_to_half(0.125f)) + bytes, [&](int i) { return 0.125f * static_cast<float>(i * 8 - 128); });
}

TEST(GgufTypes, ScalesThatAreNotFiniteAreRefused) {
  for (const float scale : {INFINITY, NAN, 1000.0f}) {
    const std::string block = encode(float_to_half(scale)) + std::string(32, '\1');
    EXPECT_THROW(gguf::make_matrix(8, std::as_bytes(std::span(block)), 1, 32, {}, "test"), Error) << scale;
  }
}

}  // namespace
}  // namespace tersor::model::test
