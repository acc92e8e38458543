// Codec names: what parses, what they are called again, and what a refusal says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tersor/codec.h"

namespace tersor::codec {
namespace {

constexpr const char* kCanonical[] = {"full",
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
                                      "turboquant:3,rounds=1,seed=18446744073709551615",
                                      "turboquant:4,scalar=norm",
                                      "turboquant:4,scalar=lsq",
                                      "turboquant:4,rounds=1,scalar=unbiased,seed=3,centre=64",
                                      "turboquant:2.5",
                                      "turboquant:3.5,seed=4",
                                      "turboquant:1.25",
                                      "turboquant:5.75,centre=calibrated",
                                      "turboquant-prod:1",
                                      "turboquant-prod:6,scalar=lsq",
                                      "turboquant-rvq:1+1",
                                      "turboquant-rvq:2+2,book=joint,stages=1",
                                      "turboquant-rvq:4+4,rounds=1,scalar=norm,seed=2",
                                      "qjl:256",
                                      "qjl:64,sketch=gaussian,outliers=8,seed=5",
                                      "vecinfer:2,sub=4",
                                      "vecinfer:1.5,sub=8",
                                      "vecinfer:1,sub=8,centre=128",
                                      "vecinfer:0.75,sub=16",
                                      "affine:2,group=32,axis=channel",
                                      "affine:4,axis=channel,rule=mlx",
                                      "affine:4,rule=minmax",
                                      "affine:8,group=32,centre=16",
                                      "mxfp4",
                                      "mxfp4,rule=ocp",
                                      "mxfp8",
                                      "mxfp8,rule=ocp,centre=calibrated"};

constexpr const char* kRefused[] = {"",
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
                                    "full:fp16,seed=1",
                                    "full,centre=4",
                                    "turboquant:2.3",
                                    "turboquant:2.",
                                    "turboquant:.5",
                                    "turboquant:0.5",
                                    "turboquant:6.5",
                                    "turboquant:4,scalar=none",
                                    "turboquant:4,centre=-1",
                                    "turboquant:4,centre=x",
                                    "turboquant-prod",
                                    "turboquant-prod:7",
                                    "turboquant-prod:2,scalar=unbiased",
                                    "turboquant-rvq:4",
                                    "turboquant-rvq:4+",
                                    "turboquant-rvq:0+1",
                                    "turboquant-rvq:5+4",
                                    "turboquant-rvq:2+2,stages=3",
                                    "turboquant-rvq:2+2,book=best",
                                    "qjl",
                                    "qjl:7",
                                    "qjl:1e9",
                                    "qjl:64,outliers=65",
                                    "qjl:64,rounds=2",
                                    "vecinfer:2",
                                    "vecinfer:2,sub=1",
                                    "vecinfer:2,sub=17",
                                    "vecinfer:2,sub=8",
                                    "vecinfer:1.3,sub=4",
                                    "vecinfer:-2,sub=4",
                                    "vecinfer:nan,sub=4",
                                    "vecinfer:inf,sub=4",
                                    "affine:4,axis=both",
                                    "affine:4,rule=ocp",
                                    "affine:4,group=128,axis=channel",
                                    "mxfp4:4",
                                    "mxfp6",
                                    "mxfp4,group=16",
                                    "mxfp8,rule=minmax"};

TEST(Spec, CanonicalNamesComeBack) {
  for (const char* name : kCanonical) {
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
  EXPECT_EQ(Spec::parse("turboquant-prod:3,scalar=norm").str(), "turboquant-prod:3");
  EXPECT_EQ(Spec::parse("turboquant-rvq:2+1,stages=2,book=sequential").str(), "turboquant-rvq:2+1");
  EXPECT_EQ(Spec::parse("qjl:128,outliers=0,sketch=orthogonal").str(), "qjl:128");
  EXPECT_EQ(Spec::parse("vecinfer:2.0,sub=4").str(), "vecinfer:2,sub=4");
  EXPECT_EQ(Spec::parse("affine:4,rule=mlx,axis=token,centre=0").str(), "affine:4");
  EXPECT_EQ(Spec::parse("affine:4,rule=minmax,axis=channel").str(), "affine:4,axis=channel");
  EXPECT_EQ(Spec::parse("affine:4,axis=channel,rule=minmax"), Spec::parse("affine:4,rule=minmax,axis=channel"));
  EXPECT_EQ(Spec::parse("mxfp4,rule=mlx").str(), "mxfp4");
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

TEST(Spec, FieldsOfTheOtherFamilies) {
  const Spec split = Spec::parse("turboquant:2.75"), rvq = Spec::parse("turboquant-rvq:3+2,stages=1"),
             vq = Spec::parse("vecinfer:1.5,sub=8");
  EXPECT_EQ(split.family, Family::turboquant_split);
  EXPECT_EQ(split.bits, 2);
  EXPECT_EQ(split.bits2, 3);
  EXPECT_EQ(split.quarters, 3);
  EXPECT_EQ(rvq.bits, 3);
  EXPECT_EQ(rvq.bits2, 2);
  EXPECT_EQ(rvq.stages, 1);
  EXPECT_EQ(vq.bits, 12);
  EXPECT_EQ(vq.sub, 8);
  EXPECT_EQ(Spec::parse("qjl:256").sketch_rows, 256);
  EXPECT_EQ(Spec::parse("mxfp8").bits, 8);
  EXPECT_EQ(Spec::parse("mxfp8").group, 32);
  EXPECT_EQ(Spec::parse("affine:4,centre=32").centre, 32);
  EXPECT_EQ(Spec::parse("affine:4,centre=calibrated").centre, Spec::kCentreCalibrated);
}

TEST(Spec, RefusalsListWhatWouldWork) {
  for (const char* name : kRefused) {
    try {
      Spec::parse(name);
      ADD_FAILURE() << "\"" << name << "\" was taken";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr(name), testing::Not(testing::HasSubstr("\n"))));
    }
  }
  const auto said = [](const char* name) -> std::string {
    try {
      Spec::parse(name);
    } catch (const Error& error) { return error.what(); }
    return "taken";
  };
  EXPECT_THAT(said("affine:7"), testing::AllOf(testing::HasSubstr("write affine:{2,3,4,5,6,8}"), testing::Not(testing::HasSubstr("qjl"))));
  EXPECT_THAT(said("turboqant:4"), testing::HasSubstr("did you mean turboquant:{1..6}"));
  EXPECT_THAT(said("mxfp6"), testing::HasSubstr("did you mean mxfp"));
  EXPECT_THAT(said("something:4"), testing::HasSubstr("there are full, affine,"));
}

TEST(Spec, UnknownStorageTypesListTheKnownOnes) {
  for (const char* name : {"full:", "full:int8", "full:fp64", "full:16"}) {
    try {
      Spec::parse(name);
      ADD_FAILURE() << "\"" << name << "\" was taken";
    } catch (const Error& error) { EXPECT_THAT(error.what(), testing::HasSubstr("write full[:fp16|bf16|fp32]")); }
  }
}

TEST(Spec, KnownCodecsNamesEveryFamily) {
  for (int family = 0; family <= static_cast<int>(Family::mxfp8); ++family)
    EXPECT_THAT(known_codecs(), testing::HasSubstr(std::string(name_of(static_cast<Family>(family)))));
}

}  // namespace
}  // namespace tersor::codec
