#include "cli/npy.h"

#include <bit>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "tersor/base.h"

namespace tersor::cli {
namespace {

static_assert(std::endian::native == std::endian::little, "values are copied as they are");

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kAlignment = 64;  // of the data, as the format asks

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what) {
  throw Error(path.string() + ": " + what + "; save it with numpy.save as a C-order float16, float32 or float64 array");
}

struct Header {
  std::string_view dictionary;
  size_t data_offset;
};

// "\x93NUMPY", major, minor, length of the dictionary (2 bytes in version 1, 4 later), the dictionary.
Header split(std::string_view bytes, const std::filesystem::path& path) {
  if (!bytes.starts_with(kMagic) || bytes.size() < 12) refuse(path, "is not a .npy file");
  const int major = bytes[6];
  if (major < 1 || major > 3) refuse(path, "has .npy version " + std::to_string(major) + ", and 1 to 3 are known");
  const size_t width = major == 1 ? 2 : 4;
  uint32_t length = 0;
  std::memcpy(&length, bytes.data() + 8, width);
  const size_t offset = 8 + width + length;
  if (offset > bytes.size()) refuse(path, "ends within its header");
  return {bytes.substr(8 + width, length), offset};
}

// The text after `'key':` in the dictionary, spaces skipped.
std::string_view value_of(std::string_view dictionary, const std::string& key, const std::filesystem::path& path) {
  size_t at = dictionary.find("'" + key + "'");
  if (at != std::string_view::npos) at = dictionary.find(':', at);
  if (at != std::string_view::npos) at = dictionary.find_first_not_of(' ', at + 1);
  if (at == std::string_view::npos) refuse(path, "has no '" + key + "' in its header");
  return dictionary.substr(at);
}

// "(3, 4)" -> {3, 4}; the product stays below 2^48, so that sizes cannot overflow.
std::vector<int64_t> parse_shape(std::string_view text, const std::filesystem::path& path) {
  std::vector<int64_t> shape;
  int64_t product = 1;
  const size_t end = text.find(')');
  if (!text.starts_with('(') || end == std::string_view::npos) refuse(path, "has a damaged shape in its header");
  for (size_t at = 1; at < end;) {
    if (text[at] == ' ' || text[at] == ',') {
      ++at;
      continue;
    }
    int64_t extent = 0;
    size_t digits = 0;
    for (; at < end && text[at] >= '0' && text[at] <= '9' && digits < 15; ++at, ++digits) extent = extent * 10 + (text[at] - '0');
    if (digits == 0 || extent == 0) refuse(path, "has an empty or damaged shape in its header");
    if (extent > (int64_t{1} << 48) / product) refuse(path, "states more numbers than any file holds");
    product *= extent;
    shape.push_back(extent);
  }
  return shape;
}

float half_at(const char* from) {
  uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return half_to_float(bits);
}

float double_at(const char* from) {
  double value;
  std::memcpy(&value, from, sizeof value);
  return static_cast<float>(value);
}

void convert(const char* from, size_t width, std::span<float> to) {
  if (width == 4) std::memcpy(to.data(), from, to.size_bytes());
  if (width == 2)
    for (size_t i = 0; i < to.size(); ++i) to[i] = half_at(from + 2 * i);
  if (width == 8)
    for (size_t i = 0; i < to.size(); ++i) to[i] = double_at(from + 8 * i);
}

}  // namespace

NpyArray read_npy(const std::filesystem::path& path) {
  const MappedFile file(path);
  const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  const Header header = split(bytes, path);
  const std::string_view type = value_of(header.dictionary, "descr", path);
  const size_t width = type.starts_with("'<f2'") ? 2 : type.starts_with("'<f4'") ? 4 : type.starts_with("'<f8'") ? 8 : 0;
  if (width == 0) refuse(path, "holds numbers of type " + std::string(type.substr(0, std::min<size_t>(type.find(','), 16))));
  if (!value_of(header.dictionary, "fortran_order", path).starts_with("False")) refuse(path, "is in Fortran order");
  NpyArray array;
  array.shape = parse_shape(value_of(header.dictionary, "shape", path), path);
  size_t count = 1;
  for (const int64_t extent : array.shape) count *= static_cast<size_t>(extent);
  if (bytes.size() - header.data_offset != count * width)
    refuse(path, "has " + std::to_string(bytes.size() - header.data_offset) + " bytes of numbers where its shape needs " +
                     std::to_string(count * width));
  array.values.resize(count);
  convert(bytes.data() + header.data_offset, width, array.values);
  return array;
}

void write_npy(const std::filesystem::path& path, std::span<const int64_t> shape, std::span<const float> values) {
  std::string extents;
  for (const int64_t extent : shape) extents += std::to_string(extent) + ", ";
  if (shape.size() > 1) extents.resize(extents.size() - 2);
  std::string dictionary = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + extents + "), }";
  dictionary.append((kAlignment - (10 + dictionary.size() + 1) % kAlignment) % kAlignment, ' ');
  dictionary += '\n';
  std::string head = std::string(kMagic) + '\x01' + '\0';
  head += static_cast<char>(dictionary.size() & 0xff);
  head += static_cast<char>(dictionary.size() >> 8);
  head += dictionary;
  write_atomically(path, [&](const std::filesystem::path& temporary) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(temporary.c_str(), "wb"), std::fclose);
    const bool written = file && std::fwrite(head.data(), 1, head.size(), file.get()) == head.size() &&
                         std::fwrite(values.data(), sizeof(float), values.size(), file.get()) == values.size() &&
                         std::fflush(file.get()) == 0;
    if (!written) throw Error(path.string() + ": cannot be written: " + std::strerror(errno));
  });
}

}  // namespace tersor::cli
