// Which SIMD instruction set the CPU kernels use: the best one of this machine, or the one TERSOR_SIMD names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tersor::kernels {

/// Highway's names of the targets that are compiled in and that this machine can run, best first ("AVX3_DL", "AVX3", "AVX2", "SSE4", ...).
std::vector<std::string> available_simd_targets();

/// The target that dispatched kernels run with now.
std::string simd_target_name();

/// Makes every dispatched kernel use this target (any case). Throws Error, naming what this machine has, when it is unknown or
/// not available; an empty name returns to the machine's best. For tests and TERSOR_SIMD; not while kernels run.
void force_simd_target(std::string_view name);

/// Applies TERSOR_SIMD, once a process; throws the same Error each time while the variable is wrong. Called before the first
/// choice of a kernel.
void apply_simd_environment();

}  // namespace tersor::kernels
