// Facts of a model file from its headers, whether or not Tersor can run it.
#include <map>
#include <utility>

#include "base/sniff.h"
#include "model/folder.h"
#include "model/gguf.h"
#include "model/gguf_types.h"
#include "model/hf_config.h"
#include "model/weight_plan.h"

namespace tersor::model {
namespace {

class Facts {
 public:
  void add(const std::string& key, const std::string& value) { result_.facts.emplace_back(key, value); }
  void add_text(const std::string& key, std::string_view value) {
    if (!value.empty()) add(key, printable(value));
  }
  void tensor(std::string_view name, const std::string& type, const std::vector<uint64_t>& shape, uint64_t bytes) {
    result_.tensors.push_back({printable(name), type, shape_text(shape), bytes});
    ++types_[type];
    bytes_ += bytes;
  }
  void finish_tensors(uint64_t parameters) {
    std::string mix;
    for (const auto& [type, count] : types_) mix += (mix.empty() ? "" : ", ") + type + " x " + std::to_string(count);
    add("tensors", std::to_string(result_.tensors.size()));
    add("tensor types", mix);
    add("tensor bytes", human_bytes(bytes_));
    add("parameters", std::to_string(parameters));
  }
  Inspection take() { return std::move(result_); }

 private:
  Inspection result_;
  std::map<std::string, int> types_;
  uint64_t bytes_ = 0;
};

void add_config(Facts& facts, const Config& c) {
  facts.add("family", c.family);
  facts.add("layers", std::to_string(c.layers));
  facts.add("hidden size", std::to_string(c.hidden));
  facts.add("feed-forward size", std::to_string(c.intermediate));
  facts.add("query heads", std::to_string(c.heads));
  facts.add("key/value heads", std::to_string(c.kv_heads));
  facts.add("head size", std::to_string(c.head_dim));
  facts.add("vocabulary", std::to_string(c.vocab));
  facts.add("context", std::to_string(c.context));
  facts.add("rope base", std::to_string(static_cast<double>(c.rope_theta)));
  facts.add("sliding window", c.sliding_window ? std::to_string(c.sliding_window) : "none");
  facts.add("output head", c.tied_head ? "shared with the embedding" : "its own");
  facts.add("KV cache per token (16-bit)", human_bytes(uint64_t{4} * static_cast<uint64_t>(c.layers) * static_cast<uint64_t>(c.kv_heads) *
                                                       static_cast<uint64_t>(c.head_dim)));
}

// Whether load() would take the model; its configuration where it would.
void add_verdict(Facts& facts, const std::filesystem::path& path) {
  try {
    LoadPlan plan = plan_model(path);
    if (!plan.data.unused.empty()) facts.add("not used", plan.data.unused);
    check_memory(plan);
    const text::Tokenizer tokenizer = take_tokenizer(plan.data);
    add_config(facts, plan.data.config);
    facts.add("chat format", std::string(text::name_of(text::recognise_chat(tokenizer.data().chat_template))));
    facts.add("memory for weights", human_bytes(plan.bytes()));
    facts.add("runs", "yes");
  } catch (const Error& error) { facts.add("runs", std::string("no: ") + error.what()); }
}

uint64_t product(const std::vector<uint64_t>& shape) {
  uint64_t result = 1;
  for (const uint64_t dim : shape) result *= dim;
  return result;
}

// A string's text, whatever its size; nothing for values of other types.
std::string_view text_of(const gguf::File& file, std::string_view key) {
  const gguf::Value* value = file.value(key);
  return value && value->type == gguf::ValueType::string ? *file.string(key) : std::string_view();
}

Inspection inspect_gguf(const std::filesystem::path& path) {
  const gguf::File file(path);
  Facts facts;
  facts.add("file", path.string());
  facts.add("format", "gguf, version " + std::to_string(file.version()));
  facts.add("file size", human_bytes(file.size()));
  facts.add_text("architecture", text_of(file, "general.architecture"));
  facts.add_text("name", text_of(file, "general.name"));
  facts.add_text("licence", text_of(file, "general.license"));
  facts.add_text("tokenizer", text_of(file, "tokenizer.ggml.model"));
  const auto pre = text_of(file, "tokenizer.ggml.pre");
  facts.add_text("pre-tokenizer", pre.empty() ? "not named; gpt-2 is assumed" : pre);
  uint64_t parameters = 0;
  for (const auto& t : file.tensors()) {
    facts.tensor(t.name, gguf::type_name(t.type), t.shape, t.data.size());
    parameters += product(t.shape);
  }
  facts.finish_tensors(parameters);
  add_verdict(facts, path);
  return facts.take();
}

// Lists the tensors of one file and counts the parameters they hold: U32 codes as the values they pack, where the configuration tells.
uint64_t add_tensors(Facts& facts, const safetensors::File& file, const hf::FolderConfig& config) {
  uint64_t parameters = 0;
  for (const auto& t : file.tensors()) {
    facts.tensor(t.name, printable(t.dtype), t.shape, t.data.size());
    if (t.name.ends_with(".scales") || t.name.ends_with(".biases")) continue;
    const auto scheme = t.dtype == "U32" ? config.of(t.name.substr(0, t.name.rfind('.'))) : std::nullopt;
    parameters += scheme ? product(t.shape) * 32 / static_cast<uint64_t>(scheme->bits) : product(t.shape);
  }
  return parameters;
}

// Empty where load() would refuse it; the verdict says why.
hf::FolderConfig config_or_nothing(const hf::Section& json) {
  try {
    return hf::read_folder_config(json);
  } catch (const Error&) { return {}; }
}

Inspection inspect_safetensors(const std::filesystem::path& path) {
  const safetensors::File file(path);
  Facts facts;
  facts.add("file", path.string());
  facts.add("format", "safetensors");
  facts.add("file size", human_bytes(file.size()));
  facts.finish_tensors(add_tensors(facts, file, {}));
  facts.add("runs", "no: " + path.string() + ": is only the weights; give the folder that also holds config.json");
  return facts.take();
}

Inspection inspect_folder(const std::filesystem::path& path) {
  const hf::Section config = hf::Section::read(path / "config.json", uint64_t{16} << 20);
  const hf::Shards shards(path);
  Facts facts;
  facts.add("folder", path.string());
  facts.add("format", "safetensors, " + std::to_string(shards.files().size()) + (shards.files().size() == 1 ? " file" : " files"));
  facts.add("file size", human_bytes(shards.bytes()));
  if (config.value("model_type").is_string()) facts.add_text("architecture", config.string("model_type"));
  std::error_code code;
  facts.add("tokenizer", std::filesystem::exists(path / "tokenizer.json", code) ? "tokenizer.json" : "none");
  const auto known = config_or_nothing(config);
  if (const auto& q = known.quantisation)
    facts.add("quantisation",
              std::string(name_of(q->coding)) + ", " + std::to_string(q->bits) + " bits, groups of " + std::to_string(q->group));
  uint64_t parameters = 0;
  for (const auto& file : shards.files()) parameters += add_tensors(facts, *file, known);
  facts.finish_tensors(parameters);
  add_verdict(facts, path);
  return facts.take();
}

}  // namespace

Inspection inspect(const std::filesystem::path& path) {
  std::error_code code;
  if (!std::filesystem::exists(path, code)) throw Error(path.string() + ": there is no such file or folder");
  if (std::filesystem::is_directory(path, code)) return inspect_folder(path);
  return path.extension() == ".safetensors" ? inspect_safetensors(path) : inspect_gguf(path);
}

}  // namespace tersor::model
