#include "model/weight_plan.h"

namespace tersor::model {

LoadPlan plan_model(const std::filesystem::path& path) {
  std::error_code code;
  if (!std::filesystem::exists(path, code)) throw Error(path.string() + ": there is no such file or folder");
  return std::filesystem::is_directory(path, code) ? plan_folder(path) : plan_gguf(path);
}

ModelData load(const std::filesystem::path& path, std::optional<ops::Precision> pack) {
  LoadPlan plan = plan_model(path);
  check_memory(plan);
  return run_plan(std::move(plan), pack);
}

text::Tokenizer take_tokenizer(ModelData& data) {
  try {
    return text::Tokenizer(std::move(data.tokenizer));
  } catch (const Error& error) {
    if (data.path.empty()) throw;
    const bool folder = data.format == "safetensors";
    throw Error(data.path.string() + ": tokenizer: " + error.what() +
                (folder ? "; tokenizer.json is damaged or not supported, fetch it again" : "; the file is damaged, fetch it again"));
  }
}

}  // namespace tersor::model
