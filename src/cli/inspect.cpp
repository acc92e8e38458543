#include <memory>

#include "cli/command.h"
#include "cli/input.h"
#include "cli/machine.h"
#include "cli/options.h"
#include "cli/report.h"

namespace tersor::cli {
namespace {

struct Options {
  std::string path;
  bool tensors = false, json = false;
};

std::string machine_text(const Machine& machine, const std::vector<ops::Choice>& kernels) {
  std::string targets;
  for (const auto& name : machine.simd_available) targets += (targets.empty() ? "" : ", ") + name;
  std::string text = version_line() + "\n" + machine.cpu + ", SIMD " + machine.simd + " (of " + targets + "), " +
                     std::to_string(machine.threads) + " threads, memory limit " + human_bytes(machine.memory_limit) +
                     "\n\nKernels on this machine:\n";
  Rows rows{{"op", "problem", "kernel", "why"}};
  for (const auto& choice : kernels) rows.push_back({choice.op, choice.problem, choice.kernel, choice.reason});
  return text + columns(rows);
}

std::string model_text(const model::Inspection& inspection, bool every_tensor) {
  Rows facts;
  for (const auto& [key, value] : inspection.facts) facts.push_back({key, value});
  std::string text = columns(facts) + "\n";
  if (!every_tensor) return text;
  Rows rows{{"tensor", "type", "shape", "bytes"}};
  for (const auto& tensor : inspection.tensors) rows.push_back({tensor.name, tensor.type, tensor.shape, std::to_string(tensor.bytes)});
  return text + columns(rows) + "\n";
}

Json model_json(const std::string& path, const model::Inspection& inspection) {
  Json facts = Json::object(), tensors = Json::array();
  for (const auto& [key, value] : inspection.facts) facts[key] = value;
  for (const auto& tensor : inspection.tensors)
    tensors.push_back({{"name", tensor.name}, {"type", tensor.type}, {"shape", tensor.shape}, {"bytes", tensor.bytes}});
  return {{"path", path}, {"facts", facts}, {"tensors", tensors}};
}

int run(const Options& options) {
  std::optional<model::Inspection> inspection;
  if (!options.path.empty()) {
    require_exists(options.path);
    inspection = model::inspect(options.path);
  }
  const Machine machine = describe_machine();
  const auto kernels = ops::kernel_table();
  if (options.json) {
    Json json = Json::object();
    if (inspection) json["model"] = model_json(options.path, *inspection);
    json["machine"] = to_json(machine);
    json["kernels"] = to_json(kernels);
    print_json(json);
  } else {
    print((inspection ? model_text(*inspection, options.tensors) : "") + machine_text(machine, kernels));
  }
  return 0;
}

}  // namespace

void add_inspect(CLI::App& parent, Commands& commands) {
  CLI::App* app = parent.add_subcommand(
      "inspect",
      "Show what a model file holds and what would run here. Only headers are read. Without a model: the machine and its kernels.");
  app->footer("Example: tersor inspect SmolLM2.gguf --tensors");
  auto options = std::make_shared<Options>();
  app->add_option("-m,--model,model", options->path, "A .gguf file, or a folder with config.json and *.safetensors")->type_name("PATH");
  app->add_flag("--tensors", options->tensors, "List every tensor");
  add_json(*app, options->json);
  commands.push_back({app, [options] { return run(*options); }});
}

}  // namespace tersor::cli
