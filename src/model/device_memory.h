// Whether something fits the memory that the default device computes in.
#pragma once

#include <cstdint>
#include <string>

namespace tersor::model {

/// Throws Error "WHAT, more than nine tenths of this machine's memory (20 GiB); REMEDY" when `bytes` do not fit what this process may use.
void require_memory(uint64_t bytes, const std::string& what, const std::string& remedy);
/// The same for the memory that the default device computes in: a GPU's own, else the machine's.
void require_device_memory(uint64_t bytes, const std::string& what, const std::string& remedy);

}  // namespace tersor::model
