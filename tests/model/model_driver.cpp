// A program for tests/python/test_model_files.py:
//   model_driver load PATH                   one line: the configuration, or the error (exit status 2)
//   model_driver dump PATH TENSOR OUT.npy    a tensor as float32, by canonical name ("model.norm", "...q_proj", "...q_proj.bias")
//   model_driver save PATH OUT.safetensors  every array as it is, "NAME.weight", ".scales", ".biases", ".bias"
//   model_driver tokenizer PATH              facts of the tokenizer data
//   model_driver inspect PATH                facts and tensors
#include <mlx/io.h>
#include <mlx/ops.h>

#include <iostream>
#include <string>
#include <unordered_map>

#include "tersor/model.h"

namespace {

using namespace tersor;
namespace mx = mlx::core;

int show_config(const model::ModelData& data) {
  const auto& c = data.config;
  std::cout << "ok format=" << data.format << " family=" << c.family << " layers=" << c.layers << " hidden=" << c.hidden
            << " intermediate=" << c.intermediate << " heads=" << c.heads << " kv_heads=" << c.kv_heads << " head_dim=" << c.head_dim
            << " vocab=" << c.vocab << " context=" << c.context << " eps=" << c.norm_eps << " theta=" << c.rope_theta
            << " rotary=" << c.rotary_dims << " linear=" << c.linear_rope_factor << " tied=" << c.tied_head << " qk_norm=" << c.qk_norm
            << " qkv_bias=" << c.qkv_bias << " o_bias=" << c.o_bias << " mlp_bias=" << c.mlp_bias << " act=" << name_of(c.activation)
            << " window=" << c.sliding_window << " freq_factors=" << c.rope_freq_factors.size()
            << " llama3=" << (c.llama3_scaling ? c.llama3_scaling->factor : 0.0f) << " linears=" << data.linears.size()
            << " vectors=" << data.vectors.size() << " weights=" << data.identity.at("weights") << " peak=" << peak_resident_bytes()
            << "\n";
  return 0;
}

int show_tokenizer(const text::TokenizerData& t) {
  std::cout << "ok tokens=" << t.tokens.size() << " merges=" << t.merges.size() << " added=" << t.added.size()
            << " steps=" << t.pretokenizer.size() << " bos=" << t.bos.value_or(-1) << " eos=" << t.eos.value_or(-1)
            << " add_bos=" << t.add_bos << " template=" << t.chat_template.size() << " ends=";
  for (size_t i = 0; i < t.end_tokens.size(); ++i) std::cout << (i ? "," : "") << t.end_tokens[i];
  std::cout << "\n";
  return 0;
}

mx::array find(const model::ModelData& data, const std::string& name) {
  if (const auto vector = data.vectors.find(name); vector != data.vectors.end()) return vector->second;
  const bool bias = name.ends_with(".bias");
  const auto linear = data.linears.find(bias ? name.substr(0, name.size() - 5) : name);
  if (linear == data.linears.end()) throw Error("no tensor " + name);
  const auto& w = linear->second;
  if (bias) return w.bias.value();
  return w.bits ? mx::dequantize(w.weight, *w.scales, w.biases, w.group, w.bits, std::string(name_of(w.coding)), {}, mx::float32)
                : w.weight;
}

void save_all(const model::ModelData& data, const std::string& path) {
  std::unordered_map<std::string, mx::array> arrays;
  for (const auto& [name, vector] : data.vectors) arrays.emplace(name + ".weight", vector);
  for (const auto& [name, w] : data.linears) {
    arrays.emplace(name + ".weight", w.weight);
    if (w.scales) arrays.emplace(name + ".scales", *w.scales);
    if (w.biases) arrays.emplace(name + ".biases", *w.biases);
    if (w.bias) arrays.emplace(name + ".bias", *w.bias);
  }
  mx::save_safetensors(path, arrays);
}

int show_inspection(const model::Inspection& inspection) {
  for (const auto& [key, value] : inspection.facts) std::cout << key << ": " << value << "\n";
  for (const auto& tensor : inspection.tensors)
    std::cout << "  " << tensor.name << " " << tensor.type << " " << tensor.shape << " " << tensor.bytes << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 2 ? argv[1] : "";
  try {
    if (mode == "load") return show_config(model::load(argv[2]));
    if (mode == "tokenizer") return show_tokenizer(model::load(argv[2]).tokenizer);
    if (mode == "inspect") return show_inspection(model::inspect(argv[2]));
    if (mode == "dump" && argc == 5) {
      mx::save(argv[4], mx::contiguous(mx::astype(find(model::load(argv[2]), argv[3]), mx::float32)));
      return 0;
    }
    if (mode == "save" && argc == 4) {
      save_all(model::load(argv[2]), argv[3]);
      return 0;
    }
    std::cerr << "usage: model_driver load|tokenizer|inspect PATH, dump PATH TENSOR OUT.npy, or save PATH OUT.safetensors\n";
    return 1;
  } catch (const Error& error) {
    std::cerr << "err " << error.what() << "\n";
    return 2;
  }
}
