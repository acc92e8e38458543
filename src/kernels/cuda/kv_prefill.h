// Attention of many query rows over tiles of codes: codes become 16-bit floats in shared memory, warpgroups multiply them.
#pragma once

#include "kernels/cuda/kv_attend.h"

namespace tersor::kernels::cuda {

struct PrefillParams {
  AttendParams attend;  // needs no partials and no tickets
  Code keys = Code::full, values = Code::full;
};

/// The codes are set in `params`. launch.function is null when there is no kernel, or when
/// attend_plan's is the better one: few rows, or so few heads that it must split tokens to fill the device.
Launch prefill_plan(PrefillParams& params, Code keys, Code values, int dim, int processors);
/// The same whatever the number of rows: for tests and measurements.
Launch prefill_any(PrefillParams& params, Code keys, Code values, int dim);

}  // namespace tersor::kernels::cuda
