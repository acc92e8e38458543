// Codec names: what parses, what they are called again, and what a refusal says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tersor/codec.h"

namespace tersor::codec {
namespace {

TEST(Spec, CanonicalNamesComeBack) {
  for (const char* name : {"full",
                           "full:fp16",
                           "full:bf16",
                           "full:fp32",
                           "affine:2",
                           "affine:3",
                           "affine:4",
                           "affine:5",
                           "affine:6",
                           "affine:8",
                           "affine:4,group=32",
                           "affine:8,group=128",
                           "turboquant:1",
                           "turboquant:2",
                           "turboquant:3",
                           "turboquant:4",
                           "turboquant:5",
                           "turboquant:6",
                           "turboquant:4,rounds=1",
                           "turboquant:3,seed=7",
                           "turboquant:3,rounds=1,seed=18446744073709551615"}) {
    const Spec spec = Spec::parse(name);
    EXPECT_EQ(spec.str(), name);
    EXPECT_EQ(Spec::parse(spec.str()), spec);
  }
}

TEST(Spec, OtherSpellingsMeanTheCanonicalName) {
  EXPECT_EQ(Spec::parse("full:f16").str(), "full:fp16");
  EXPECT_EQ(Spec::parse("full:float32").str(), "full:fp32");
  EXPECT_EQ(Spec::parse("affine:4,group=64").str(), "affine:4");
  EXPECT_EQ(Spec::parse("turboquant:4,seed=0,rounds=2").str(), "turboquant:4");
  EXPECT_EQ(Spec::parse("turboquant:4,seed=9,rounds=1").str(), "turboquant:4,rounds=1,seed=9");
}

TEST(Spec, FieldsAreWhatTheNameSays) {
  const Spec affine = Spec::parse("affine:5,group=32"), turbo = Spec::parse("turboquant:3,rounds=1,seed=12"),
             full = Spec::parse("full:bf16");
  EXPECT_EQ(affine.family, Family::affine);
  EXPECT_EQ(affine.bits, 5);
  EXPECT_EQ(affine.group, 32);
  EXPECT_EQ(turbo.family, Family::turboquant);
  EXPECT_EQ(turbo.bits, 3);
  EXPECT_EQ(turbo.rounds, 1);
  EXPECT_EQ(turbo.seed, 12u);
  EXPECT_EQ(full.family, Family::full);
  EXPECT_EQ(full.dtype, Dtype::bf16);
  EXPECT_EQ(Spec::parse("full").dtype, std::nullopt);
}

TEST(Spec, RefusalsListWhatWouldWork) {
  for (const char* name : {"",
                           ":",
                           ",",
                           "foo",
                           "Full",
                           "affine",
                           "affine:",
                           "affine:x",
                           "affine:1",
                           "affine:7",
                           "affine:9",
                           "affine:-4",
                           "affine:+4",
                           "affine:4 ",
                           " affine:4",
                           "affine:4.0",
                           "affine:4:5",
                           "affine:99999999999999999999",
                           "affine:4,",
                           "affine:4,,",
                           "affine:4,group",
                           "affine:4,group=",
                           "affine:4,group=48",
                           "affine:4,group=x",
                           "affine:4,seed=1",
                           "affine:4,rounds=2",
                           "turboquant",
                           "turboquant:0",
                           "turboquant:7",
                           "turboquant:4,rounds=0",
                           "turboquant:4,rounds=3",
                           "turboquant:4,seed=-1",
                           "turboquant:4,seed=18446744073709551616",
                           "turboquant:4,group=32",
                           "turboquant:4;seed=1",
                           "turboquant:4,=",
                           "full,group=32",
                           "full,",
                           "full:fp16,seed=1"}) {
    try {
      Spec::parse(name);
      ADD_FAILURE() << "\"" << name << "\" was taken";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  testing::AllOf(testing::HasSubstr(name), testing::HasSubstr(known_codecs()), testing::Not(testing::HasSubstr("\n"))));
    }
  }
}

TEST(Spec, UnknownStorageTypesListTheKnownOnes) {
  for (const char* name : {"full:", "full:int8", "full:fp64", "full:16"}) {
    try {
      Spec::parse(name);
      ADD_FAILURE() << "\"" << name << "\" was taken";
    } catch (const Error& error) { EXPECT_THAT(error.what(), testing::HasSubstr("fp16, bf16 or fp32")); }
  }
}

TEST(Spec, KnownCodecsNamesEveryFamily) {
  for (const Family family : {Family::full, Family::affine, Family::turboquant})
    EXPECT_THAT(known_codecs(), testing::HasSubstr(std::string(name_of(family))));
}

}  // namespace
}  // namespace tersor::codec
