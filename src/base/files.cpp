#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "tersor/base.h"

namespace tersor {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

constexpr size_t kMostText = size_t{1} << 30;

// Where a name leads. Links stay; what they lead to need not exist yet.
std::filesystem::path behind_links(std::filesystem::path path) {
  constexpr int kMostLinks = 40;
  const auto given = path;
  std::error_code code;
  for (int i = 0; std::filesystem::is_symlink(path, code); ++i) {
    if (i == kMostLinks) throw Error(given.string() + ": cannot be written: its links lead in a circle");
    path = path.parent_path() / std::filesystem::read_symlink(path);
  }
  return path;
}

size_t regular_size(int fd, const std::filesystem::path& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw Error(path.string() + ": cannot be examined: " + std::strerror(errno));
  if (S_ISDIR(info.st_mode)) throw Error(path.string() + ": is a directory; a file is needed here");
  if (!S_ISREG(info.st_mode)) throw Error(path.string() + ": is not a regular file");
  return static_cast<size_t>(info.st_size);
}

}  // namespace

// Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever before it can be refused.
MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) throw Error(path.string() + ": cannot be opened: " + std::strerror(errno));
  size_ = regular_size(file.fd, path);
  if (size_ == 0) throw Error(path.string() + ": the file is empty");
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (mapped == MAP_FAILED) throw Error(path.string() + ": cannot be mapped: " + std::strerror(errno));
  data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

std::string read_file(const std::filesystem::path& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) throw Error(path.string() + ": cannot be opened: " + std::strerror(errno));
  struct stat info {};
  if (::fstat(file.fd, &info) == 0 && S_ISDIR(info.st_mode)) throw Error(path.string() + ": is a directory; a file is needed here");
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = ::read(file.fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(path.string() + ": cannot be read: " + std::strerror(errno));
    if (got == 0) return text;
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > kMostText)
      throw Error(path.string() + ": has more than " + human_bytes(kMostText) + ", too much for a text; check the path");
  }
}

void check_writable(const std::filesystem::path& path) {
  std::error_code code;
  if (path.empty()) throw Error("the name of the file to write is empty; give a path");
  if (std::filesystem::is_directory(path, code)) throw Error(path.string() + ": is a directory; give the name of a file to write");
  const auto parent = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  if (!std::filesystem::is_directory(parent, code))
    throw Error(path.string() + ": the folder " + parent.string() + " does not exist; create it first");
  const bool exists = std::filesystem::exists(path, code);
  if (::access(exists ? path.c_str() : parent.c_str(), W_OK) != 0)
    throw Error(path.string() + ": cannot be written: " + std::strerror(errno));
}

void write_atomically(const std::filesystem::path& given, const std::function<void(const std::filesystem::path&)>& write) {
  const auto path = behind_links(given);
  std::error_code code;
  check_writable(path);
  // Device files such as /dev/null and /dev/full are written as they are.
  if (std::filesystem::exists(path, code) && !std::filesystem::is_regular_file(path, code)) return write(path);
  const auto parent = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  if (::access(parent.c_str(), W_OK) != 0) throw Error(path.string() + ": cannot be written: " + std::strerror(errno));
  // The extension stays last: some writers append one of their own when it is missing.
  const auto temporary = parent / ("." + path.stem().string() + ".part" + std::to_string(::getpid()) + path.extension().string());
  try {
    write(temporary);
  } catch (...) {
    std::filesystem::remove(temporary, code);
    throw;
  }
  std::filesystem::rename(temporary, path, code);
  if (code) {
    const std::string reason = code.message();
    std::filesystem::remove(temporary, code);
    throw Error(path.string() + ": cannot be written: " + reason);
  }
}

}  // namespace tersor
