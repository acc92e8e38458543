// Writes small GGUF files for tests, valid or not.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tersor/base.h"

namespace tersor::model::test {

template <class T>
std::string encode(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}
inline std::string encode_string(const std::string& text) { return encode<uint64_t>(text.size()) + text; }

/// A value as it stands after its key: u32 type and encoding.
inline std::string value_u32(uint32_t value) { return encode<uint32_t>(4) + encode(value); }
inline std::string value_f32(float value) { return encode<uint32_t>(6) + encode(value); }
inline std::string value_string(const std::string& text) { return encode<uint32_t>(8) + encode_string(text); }
inline std::string value_strings(const std::vector<std::string>& texts) {
  std::string bytes = encode<uint32_t>(9) + encode<uint32_t>(8) + encode<uint64_t>(texts.size());
  for (const auto& text : texts) bytes += encode_string(text);
  return bytes;
}
inline std::string value_i32s(const std::vector<int32_t>& values) {
  std::string bytes = encode<uint32_t>(9) + encode<uint32_t>(5) + encode<uint64_t>(values.size());
  for (const int32_t value : values) bytes += encode(value);
  return bytes;
}

struct GgufFile {
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;  // innermost first
    uint32_t type = 0;
    std::string data;
    int64_t offset = -1;  // in the data section; -1: after the tensor before
  };
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::vector<std::pair<std::string, std::string>> keys;
  std::vector<Tensor> tensors;
  uint64_t extra_tensors = 0, extra_keys = 0;  // added to the counts

  /// Replaces or adds a key; an empty value removes it.
  void set(const std::string& key, const std::string& value) {
    std::erase_if(keys, [&](const auto& entry) { return entry.first == key; });
    if (!value.empty()) keys.emplace_back(key, value);
  }
  Tensor& tensor(const std::string& name) {
    for (auto& t : tensors)
      if (t.name == name) return t;
    throw Error("no tensor " + name);
  }
  void remove(const std::string& name) {
    std::erase_if(tensors, [&](const Tensor& t) { return t.name == name; });
  }

  std::string bytes() const {
    std::string head =
                    magic + encode(version) + encode<uint64_t>(tensors.size() + extra_tensors) + encode<uint64_t>(keys.size() + extra_keys),
                data;
    for (const auto& [key, value] : keys) head += encode_string(key) + value;
    for (const auto& t : tensors) {
      head += encode_string(t.name) + encode(static_cast<uint32_t>(t.dims.size()));
      for (const uint64_t dim : t.dims) head += encode(dim);
      head += encode(t.type) + encode(t.offset < 0 ? static_cast<uint64_t>(data.size()) : static_cast<uint64_t>(t.offset));
      data += t.data;
      data.resize((data.size() + 31) / 32 * 32);
    }
    head.resize((head.size() + 31) / 32 * 32);
    return head + data;
  }
};

/// A valid llama of one layer: 64 wide, 2 heads of 32, one key/value head, 40 tokens.
inline GgufFile tiny_llama() {
  GgufFile file;
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  for (int i = 0; i < 40; ++i) {
    tokens.push_back(i == 0 ? "<|im_end|>" : i == 1 ? "[user]" : std::string(1, static_cast<char>('a' + i % 26)) + (i > 27 ? "b" : ""));
    types.push_back(i == 0 ? 3 : i == 1 ? 4 : 1);
  }
  tokens[27] = "ab";
  file.keys = {
      {"general.architecture", value_string("llama")},  {"llama.block_count", value_u32(1)},
      {"llama.context_length", value_u32(128)},         {"llama.embedding_length", value_u32(64)},
      {"llama.feed_forward_length", value_u32(96)},     {"llama.attention.head_count", value_u32(2)},
      {"llama.attention.head_count_kv", value_u32(1)},  {"llama.attention.layer_norm_rms_epsilon", value_f32(1e-5f)},
      {"llama.rope.freq_base", value_f32(50000)},       {"tokenizer.ggml.model", value_string("gpt2")},
      {"tokenizer.ggml.pre", value_string("smollm")},   {"tokenizer.ggml.tokens", value_strings(tokens)},
      {"tokenizer.ggml.token_type", value_i32s(types)}, {"tokenizer.ggml.merges", value_strings({"a b"})},
      {"tokenizer.ggml.eos_token_id", value_u32(0)},
  };
  const auto add = [&](const std::string& name, std::vector<uint64_t> dims) {
    GgufFile::Tensor t{name, dims, 0, {}, -1};
    const uint64_t size = dims[0] * (dims.size() > 1 ? dims[1] : 1);
    for (uint64_t i = 0; i < size; ++i) t.data += encode(static_cast<float>(i % 1000) * 0.001f - 0.3f);
    file.tensors.push_back(std::move(t));
  };
  add("token_embd.weight", {64, 40});
  add("output_norm.weight", {64});
  add("blk.0.attn_norm.weight", {64});
  add("blk.0.attn_q.weight", {64, 64});
  add("blk.0.attn_k.weight", {64, 32});
  add("blk.0.attn_v.weight", {64, 32});
  add("blk.0.attn_output.weight", {64, 64});
  add("blk.0.ffn_norm.weight", {64});
  add("blk.0.ffn_gate.weight", {64, 96});
  add("blk.0.ffn_up.weight", {64, 96});
  add("blk.0.ffn_down.weight", {96, 64});
  return file;
}

/// A folder that is removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tersor-test-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw Error("no temporary folder");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code code;
    std::filesystem::remove_all(path_, code);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::filesystem::path write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
    return path_ / name;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace tersor::model::test
