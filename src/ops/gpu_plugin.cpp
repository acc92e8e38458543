#include "ops/gpu_plugin.h"

#include <dlfcn.h>
#include <mlx/device.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>

namespace tersor::ops {
namespace {

constexpr const char* kLibrary = "libtersor_cuda.so";

struct Loaded {
  const GpuPlugin* plugin = nullptr;
  std::string problem;
};

// The folder of the program or library that this code is part of.
std::filesystem::path own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&gpu_plugin), &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  const auto path = std::filesystem::canonical(info.dli_fname, error);
  return error ? std::filesystem::path() : path.parent_path();
}

std::vector<std::string> places() {
  if (const char* given = std::getenv("TERSOR_CUDA_PLUGIN")) return {given};
  const auto folder = own_folder();
  return {(folder / kLibrary).string(), (folder.parent_path() / "lib" / kLibrary).string(), kLibrary};
}

// Plug-ins take MLX's symbols from what is loaded for all. Python loads an extension, and MLX with it, for itself alone.
void share_mlx() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(static_cast<const mx::Device& (*)()>(&mx::default_device)), &info) != 0)
    dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
}

Loaded load() {
  if (!mx::is_available(mx::Device::gpu)) return {nullptr, "MLX has no GPU backend here"};
  share_mlx();
  std::string problem;
  for (const std::string& place : places()) {
    std::error_code error;
    if (place != kLibrary && !std::filesystem::exists(place, error)) continue;
    void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      problem = dlerror();
      continue;
    }
    using Entry = const GpuPlugin* (*)();
    const auto entry = reinterpret_cast<Entry>(dlsym(library, kGpuPluginSymbol));
    const GpuPlugin* plugin = entry ? entry() : nullptr;
    if (plugin && plugin->version == kGpuPluginVersion) return {plugin, {}};
    problem = place + " belongs to another version of Tersor";
  }
  return {nullptr, problem.empty() ? std::string(kLibrary) + " is not beside the program: build it with the preset cuda" : problem};
}

const Loaded& loaded() {
  static const Loaded result = load();
  return result;
}

}  // namespace

const GpuPlugin* gpu_plugin() { return loaded().plugin; }
const std::string& gpu_plugin_problem() { return loaded().problem; }

const GpuPlugin& require_gpu_plugin(const std::string& op) {
  if (const GpuPlugin* plugin = gpu_plugin()) return *plugin;
  throw std::runtime_error("[" + op + "] there is no GPU kernel: " + gpu_plugin_problem());
}

}  // namespace tersor::ops
