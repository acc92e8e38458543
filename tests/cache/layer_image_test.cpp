// A layer's cache as a line of text and arrays: comes back equal, shares no memory, and what does not fit is refused.
#include <gtest/gtest.h>

#include <mlx/ops.h>

#include <nlohmann/json.hpp>

#include "cache/cache_cases.h"

namespace tersor::cache {
namespace {

using Json = nlohmann::json;
using test::largest_error;

Setting setting(const char* keys, const char* values, int window, int sinks) {
  Setting s;
  s.keys = keys, s.values = values, s.window = window, s.sinks = sinks;
  s.shape.batch = 2;
  return s;
}

LayerCache back(const LayerCache::Image& image) { return LayerCache::from_image(image, Policy::automatic, ops::Precision::exact); }

TEST(LayerImage, ComesBackEqualAndApart) {
  for (const Setting& s :
       {setting("turboquant:4", "turboquant:3", 24, 4), setting("full", "full", 0, 0), setting("turboquant:4,centre=40", "affine:4", 16, 0),
        setting("qjl:256", "mxfp4", 0, 4), setting("affine:4,group=32,axis=channel", "affine:4", 0, 4)}) {
    SCOPED_TRACE(s.str());
    const Conversation talk(s, 400, 41);
    LayerCache cache = s.make();
    talk.run(cache, 0, 200, 90);
    talk.run(cache, 200, 210, 1);
    LayerCache other = back(cache.image());
    EXPECT_EQ(other.tokens(), cache.tokens());
    EXPECT_EQ(other.bytes(), cache.bytes());
    // Both go on, one after the other: neither may see what the other appends in place.
    const Rows first = talk.run(cache, 210, 400, 19), second = talk.run(other, 210, 400, 19);
    EXPECT_EQ(largest_error(first, second), 0);
    EXPECT_EQ(other.image().header, cache.image().header);
  }
}

TEST(LayerImage, AfterALongRewind) {
  const Conversation talk(setting("turboquant:4", "turboquant:4", 24, 4), 300, 42);
  LayerCache cache = talk.setting.make();
  talk.run(cache, 0, 300, 100);
  cache.rewind(203);
  LayerCache other = back(cache.image());
  EXPECT_EQ(largest_error(talk.run(cache, 97, 140, 5), talk.run(other, 97, 140, 5)), 0);
}

TEST(LayerImage, AnEmptyCache) {
  const Conversation talk(setting("turboquant:4", "turboquant:4", 24, 4), 20, 43);
  LayerCache cache = talk.setting.make(), other = back(cache.image());
  EXPECT_EQ(largest_error(talk.run(cache, 0, 20, 7), talk.run(other, 0, 20, 7)), 0);
}

class LayerImageRefuses : public testing::Test {
 protected:
  LayerImageRefuses() : talk_(setting("turboquant:4,centre=40", "turboquant:4", 24, 4), 200, 44), cache_(talk_.setting.make()) {
    talk_.run(cache_, 0, 200, 100);
  }
  // What is said of an image whose header or arrays were changed.
  std::string refusal(const std::function<void(Json&, std::vector<mx::array>&)>& change) {
    LayerCache::Image image = cache_.image();
    Json header = Json::parse(image.header);
    change(header, image.arrays);
    image.header = header.dump();
    try {
      back(image);
    } catch (const Error& error) { return error.what(); }
    return "";
  }
  Conversation talk_;
  LayerCache cache_;
};

TEST_F(LayerImageRefuses, WhatDoesNotFit) {
  const auto contains = [](const std::string& text, const char* part) { EXPECT_NE(text.find(part), std::string::npos) << text; };
  contains(refusal([](Json& h, auto&) { h["format"] = "other"; }), "not one of Tersor's");
  contains(refusal([](Json& h, auto&) { h["version"] = 7; }), "version 7");
  contains(refusal([](Json& h, auto&) { h.erase("keys"); }), "\"keys\"");
  contains(refusal([](Json& h, auto&) { h["keys"] = "turbo"; }), "turbo");
  contains(refusal([](Json& h, auto&) { h["kv_heads"] = -1; }), "kv_heads");
  contains(refusal([](Json& h, auto&) { h["kv_heads"] = 3; }), "another size");
  contains(refusal([](Json& h, auto&) { h["tokens"] = 201; }), "follow each other");
  contains(refusal([](Json& h, auto&) { h["tokens"] = 100000; }), "follow each other");
  contains(refusal([](Json& h, auto&) { h["arrangement"] = "fragments"; }), "another kind of device");
  contains(refusal([](Json& h, auto&) { h["calibration"] = "abc"; }), "another calibration");
  contains(refusal([](Json& h, auto&) { h["slabs"][0]["capacity"] = 1 << 20; }), "another size");
  contains(refusal([](Json& h, auto&) { h["slabs"][0]["kind"] = "belly"; }), "belly");
  contains(refusal([](Json& h, auto&) { h["centred"] = false; }), "arrays");
  contains(refusal([](Json&, auto& arrays) { arrays.pop_back(); }), "arrays");
  contains(refusal([](Json&, auto& arrays) { arrays[0] = mx::zeros({3}, mx::uint8); }), "another size");
  contains(refusal([](Json&, auto& arrays) { arrays.back() = mx::zeros({3}, mx::uint8); }), "another size");
  LayerCache::Image garbage = cache_.image();
  garbage.header = "{";
  EXPECT_THROW(back(garbage), Error);
}

}  // namespace
}  // namespace tersor::cache
