// Measuring how much memory one step takes.
#pragma once

namespace tersor {

/// Makes peak_resident_bytes() begin again at the present size; false where the system does not allow that.
bool reset_peak_resident();

}  // namespace tersor
