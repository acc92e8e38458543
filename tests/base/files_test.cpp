#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "tersor/base.h"

namespace tersor {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// A folder of its own for each test, gone afterwards.
class Files : public testing::Test {
 protected:
  Files() : folder_(fs::temp_directory_path() / std::to_string(::getpid()).insert(0, "tersor-files-")) { fs::create_directories(folder_); }
  ~Files() override { fs::remove_all(folder_); }

  fs::path place(const std::string& name) const { return folder_ / name; }
  fs::path file(const std::string& name, const std::string& text) const {
    std::ofstream(place(name), std::ios::binary) << text;
    return place(name);
  }
  size_t entries() const { return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {})); }

  fs::path folder_;
};

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& error) { return error.what(); }
  return "no error";
}

TEST_F(Files, AMappedFileHoldsTheBytesAndMovesOnce) {
  const std::string text = "weights\0and more";
  MappedFile first(file("model", text));
  const MappedFile second(std::move(first));
  ASSERT_EQ(second.bytes().size(), text.size());
  EXPECT_EQ(std::memcmp(second.bytes().data(), text.data(), text.size()), 0);
  EXPECT_TRUE(first.bytes().empty());
}

TEST_F(Files, WhatCannotBeMappedIsNamedInOneLine) {
  file("empty", "");
  for (const auto& [path, why] : {std::pair{place("missing"), "No such file"}, {folder_, "is a directory"}, {place("empty"), "empty"}}) {
    const std::string message = message_of([&] { MappedFile mapped(path); });
    EXPECT_THAT(message, HasSubstr(path.string()));
    EXPECT_THAT(message, HasSubstr(why));
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

TEST_F(Files, ReadFileReturnsWholeFiles) {
  EXPECT_EQ(read_file(file("small", "a\r\nb")), "a\r\nb");
  EXPECT_EQ(read_file(file("none", "")), "");
  const std::string large(300000, 'x');
  EXPECT_EQ(read_file(file("large", large)), large);
  EXPECT_THAT(message_of([&] { read_file(folder_); }), HasSubstr("is a directory"));
  EXPECT_THAT(message_of([&] { read_file(place("missing")); }), HasSubstr("No such file"));
}

TEST_F(Files, AnAtomicWriteReplacesTheFileAndLeavesNothingElse) {
  const fs::path target = file("cache.safetensors", "old");
  write_atomically(target, [&](const fs::path& temporary) {
    EXPECT_EQ(temporary.extension(), ".safetensors");
    EXPECT_EQ(temporary.parent_path(), folder_);
    std::ofstream(temporary) << "new";
    EXPECT_EQ(read_file(target), "old");
  });
  EXPECT_EQ(read_file(target), "new");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(Files, AFailedWriteKeepsTheOldFileAndRemovesItsTraces) {
  const fs::path target = file("cache", "old");
  EXPECT_THAT(message_of([&] {
                write_atomically(target, [](const fs::path& temporary) {
                  std::ofstream(temporary) << "half";
                  throw Error("the disk is full");
                });
              }),
              HasSubstr("the disk is full"));
  EXPECT_EQ(read_file(target), "old");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(Files, PlacesThatCannotBeWrittenAreRefusedBeforeAnythingIsWritten) {
  const auto never = [](const fs::path&) { FAIL() << "write was called"; };
  EXPECT_THAT(message_of([&] { write_atomically(folder_, never); }), HasSubstr("is a directory"));
  EXPECT_THAT(message_of([&] { write_atomically(place("no/such/file"), never); }), HasSubstr("does not exist"));
}

TEST_F(Files, APipeIsRefusedAndNotWaitedFor) {
  ASSERT_EQ(::mkfifo(place("pipe").c_str(), 0600), 0);
  EXPECT_THAT(message_of([&] { MappedFile file(place("pipe")); }), HasSubstr("not a regular file"));
}

TEST_F(Files, ALinkStaysAndItsTargetIsWritten) {
  const fs::path target = file("target", "old"), link = place("link"), dangling = place("dangling");
  fs::create_symlink(target, link);
  fs::create_symlink(place("later"), dangling);
  for (const fs::path& path : {link, dangling})
    write_atomically(path, [](const fs::path& temporary) { std::ofstream(temporary) << "new"; });
  EXPECT_TRUE(fs::is_symlink(link) && fs::is_symlink(dangling));
  EXPECT_EQ(read_file(target), "new");
  EXPECT_EQ(read_file(place("later")), "new");
}

TEST_F(Files, DeviceFilesAreWrittenAsTheyAre) {
  fs::path seen;
  write_atomically("/dev/null", [&](const fs::path& path) { seen = path; });
  EXPECT_EQ(seen, "/dev/null");
}

TEST(Memory, FactsAreInAPlausibleOrder) {
  EXPECT_GT(resident_bytes(), 1u << 20);
  EXPECT_GE(peak_resident_bytes(), resident_bytes() / 2);
  EXPECT_GT(memory_limit(), resident_bytes());
}

TEST(HumanBytes, ChoosesTheUnit) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(uint64_t{3} << 40), "3.0 TiB");
  EXPECT_EQ(human_bytes(uint64_t{5000} << 40), "5000.0 TiB");
}

}  // namespace
}  // namespace tersor
