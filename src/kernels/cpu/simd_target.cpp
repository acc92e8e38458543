#include "kernels/cpu/simd_target.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "tersor/base.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd_target.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {
int64_t OwnTarget() { return HWY_TARGET; }
}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tersor::kernels {
HWY_EXPORT(OwnTarget);

namespace {
std::string upper(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return result;
}

// Compiled in and runnable here, whatever is forced now: the best target first (lower bits are better).
std::vector<int64_t> available() {
  static const std::vector<int64_t> targets = [] {
    std::vector<int64_t> list;
    for (int64_t bits = hwy::SupportedTargets() & HWY_TARGETS; bits; bits &= bits - 1) list.push_back(bits & -bits);
    return list;
  }();
  return targets;
}
}  // namespace

std::vector<std::string> available_simd_targets() {
  std::vector<std::string> names;
  for (const int64_t target : available()) names.push_back(hwy::TargetName(target));
  return names;
}

std::string simd_target_name() { return hwy::TargetName(HWY_DYNAMIC_DISPATCH(OwnTarget)()); }

void force_simd_target(std::string_view name) {
  const auto targets = available();
  if (name.empty()) {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
    return;
  }
  const std::string wanted = upper(name) == "AVX512" ? "AVX3" : upper(name);  // Highway's name of it
  std::string have;
  for (const int64_t target : targets) {
    if (wanted == hwy::TargetName(target)) {
      hwy::SetSupportedTargetsForTest(target);
      hwy::GetChosenTarget().Update(target);
      return;
    }
    have += (have.empty() ? "" : ", ") + std::string(hwy::TargetName(target));
  }
  throw Error("SIMD target \"" + std::string(name) + "\" is unknown or not available on this machine: use one of " + have);
}

void apply_simd_environment() {
  [[maybe_unused]] static const bool applied = [] {
    const char* name = std::getenv("TERSOR_SIMD");
    if (name && *name) force_simd_target(name);
    return true;
  }();
}

}  // namespace tersor::kernels
#endif  // HWY_ONCE
