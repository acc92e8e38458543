#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "tersor/base.h"

namespace tersor {
namespace {

// The value in kB of one line of /proc/self/status, in bytes; 0 where there is no such file.
uint64_t status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    if (word == key) {
      uint64_t kilobytes = 0;
      file >> kilobytes;
      return kilobytes * 1024;
    }
    std::getline(file, word);
  }
  return 0;
}

}  // namespace

uint64_t resident_bytes() { return status_bytes("VmRSS:"); }
uint64_t peak_resident_bytes() { return status_bytes("VmHWM:"); }

uint64_t memory_limit() {
  uint64_t limit = static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  std::ifstream file("/sys/fs/cgroup/memory.max");
  uint64_t group = 0;
  if (file >> group && group > 0) limit = std::min(limit, group);
  return limit;
}

}  // namespace tersor
