#include "model/stop_scanner.h"

#include <gtest/gtest.h>

#include "tersor/base.h"

namespace tersor::model {
namespace {

// The text that comes out when `text` arrives in pieces of n bytes.
std::string scan(const std::vector<std::string>& stops, const std::string& text, size_t n) {
  StopScanner scanner(stops);
  std::string out;
  for (size_t i = 0; i < text.size(); i += n) out += scanner.push(text.substr(i, n));
  return out + scanner.finish();
}

TEST(StopScanner, TextEndsBeforeTheFirstStopHoweverItIsCut) {
  for (size_t n = 1; n <= 20; ++n) {
    EXPECT_EQ(scan({"END"}, "some ENEND more", n), "some EN") << n;
    EXPECT_EQ(scan({"zz", "b c", "a b"}, "x a b c", n), "x ") << n;
    EXPECT_EQ(scan({"aab"}, "aaaab", n), "aa") << n;
    EXPECT_EQ(scan({"aab"}, "aaaa", n), "aaaa") << n;
    EXPECT_EQ(scan({}, "all of it", n), "all of it") << n;
  }
}

TEST(StopScanner, HoldsBackOnlyWhatCouldBecomeAStop) {
  StopScanner scanner({"\n\nQ:"});
  EXPECT_EQ(scanner.push("yes.\n"), "yes.");
  EXPECT_EQ(scanner.push("\n"), "");
  EXPECT_EQ(scanner.push("A"), "\n\nA");
  EXPECT_EQ(scanner.push("\n\nQ"), "");
  EXPECT_FALSE(scanner.found());
  EXPECT_EQ(scanner.push(": what"), "");
  EXPECT_TRUE(scanner.found());
  EXPECT_EQ(scanner.push("more"), "");
  EXPECT_EQ(scanner.finish(), "");
}

TEST(StopScanner, NothingIsLostAtTheEnd) {
  StopScanner scanner({"stop"});
  EXPECT_EQ(scanner.push("don't sto"), "don't ");
  EXPECT_EQ(scanner.finish(), "sto");
}

TEST(StopScanner, RefusesStopStringsThatCannotWork) {
  EXPECT_THROW(StopScanner({""}), Error);
  EXPECT_THROW(StopScanner({"\x80x"}), Error);
}

}  // namespace
}  // namespace tersor::model
