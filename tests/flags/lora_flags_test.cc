// The flags of adapters.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/flags/flags.h"

namespace somnus {
namespace {

using testing::HasSubstr;

TEST(LoraFlags, ModulesComeAsPairsAndAsJson) {
  const absl::StatusOr<Flags> flags = ParseFlags(
      {"m", "--enable-lora", "--lora-modules=a=/adapters/a=1", "--max-loras=2", "--lora-unload-timeout=5s",
       R"(--lora-modules=[{"name": "b", "path": "/b"}, {"name": "c", "path": "/c", "base_model_name": "m"}])"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  const LoraFlags& lora = flags->lora;
  ASSERT_EQ(lora.modules.size(), 3u);
  EXPECT_EQ(lora.modules[0].name, "a");
  EXPECT_EQ(lora.modules[0].path, "/adapters/a=1");
  EXPECT_EQ(lora.modules[2].base, "m");
  EXPECT_EQ(MaxAdapters(lora), 3);
  EXPECT_EQ(lora.max_rank, 16);
  EXPECT_EQ(lora.unload_timeout, absl::Seconds(5));
}

TEST(LoraFlags, RefusesWhatCannotBe) {
  const std::vector<std::string> refused[] = {
      {"m", "--lora-modules=a=/a"},
      {"m", "--enable-lora", "--lora-modules=a"},
      {"m", "--enable-lora", "--lora-modules=a="},
      {"m", "--enable-lora", "--lora-modules=a=/a", "--lora-modules=a=/b"},
      {"m", "--enable-lora", R"(--lora-modules={"name": "a"})"},
      {"m", "--enable-lora", R"(--lora-modules={"name": "a", "path": 1})"},
      {"m", "--enable-lora", R"(--lora-modules={"name": "a", "path": "/a", "rank": 4})"},
      {"m", "--enable-lora", R"(--lora-modules=[{"name": "a")"},
      {"--model=x=/x", "--model=y=/y", "--enable-lora", "--lora-modules=a=/a"},
      {"--model=x=/x", "--model=y=/y", "--enable-lora",
       R"(--lora-modules={"name": "x", "path": "/a", "base_model_name": "y"})"}};
  for (const std::vector<std::string>& args : refused) {
    const absl::StatusOr<Flags> flags = ParseFlags(args);
    ASSERT_FALSE(flags.ok()) << args.back();
    EXPECT_THAT(std::string(flags.status().message()), HasSubstr("--lora-modules")) << args.back();
  }
  EXPECT_FALSE(ParseFlags({"m", "--enable-lora", "--max-lora-rank=65"}).ok());
  EXPECT_FALSE(ParseFlags({"m", "--enable-lora", "--max-loras=4", "--max-cpu-loras=2"}).ok());
}

TEST(LoraFlags, EachOfSeveralModelsHasItsOwn) {
  const absl::StatusOr<Flags> flags =
      ParseFlags({"--model=x=/x", "--model=y=/y", "--enable-lora",
                  R"(--lora-modules=[{"name": "a", "path": "/a", "base_model_name": "y"}])"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  const std::vector<Flags> each = OfEachModel(*flags);
  ASSERT_EQ(each.size(), 2u);
  EXPECT_TRUE(each[0].lora.modules.empty());
  ASSERT_EQ(each[1].lora.modules.size(), 1u);
  EXPECT_EQ(each[1].lora.modules[0].name, "a");
}

}  // namespace
}  // namespace somnus
