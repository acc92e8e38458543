#include "model/weight_plan.h"

namespace tersor::model {

LoadPlan plan_model(const std::filesystem::path& path) {
  std::error_code code;
  if (!std::filesystem::exists(path, code)) throw Error(path.string() + ": there is no such file or folder");
  return std::filesystem::is_directory(path, code) ? plan_folder(path) : plan_gguf(path);
}

ModelData load(const std::filesystem::path& path) {
  LoadPlan plan = plan_model(path);
  check_memory(plan);
  return run_plan(std::move(plan));
}

}  // namespace tersor::model
