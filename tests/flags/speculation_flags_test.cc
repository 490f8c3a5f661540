// The coordinator's flags of speculative decoding.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coordinator/flags/flags.h"

namespace somnus {
namespace {

TEST(SpeculationFlagsTest, SpeculationIsOffAndComesFromPromptLookup) {
  EXPECT_EQ(ParseFlags({"m"})->engine.scheduler.speculation.num_speculative_tokens, 0);
  const auto flags = ParseFlags({"m", "--num-speculative-tokens=8", "--speculative=ngram",
                                 "--prompt-lookup-min=3", "--prompt_lookup_max=3"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->engine.scheduler.speculation.num_speculative_tokens, 8);
  EXPECT_EQ(flags->prompt_lookup_min, 3);
  EXPECT_EQ(flags->prompt_lookup_max, 3);
  const std::vector<std::string> refused[] = {{"m", "--prompt-lookup-min=6"},
                                              {"m", "--speculative=draft", "--num-speculative-tokens=4"},
                                              {"m", "--speculative=draft", "--draft-model=d"},
                                              {"m", "--draft-model=d", "--num-speculative-tokens=4"},
                                              {"m", "--num-speculative-tokens=65"},
                                              {"m", "--prompt-lookup-min=0"}};
  for (const std::vector<std::string>& args : refused) {
    const absl::Status status = ParseFlags(args).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << args[1];
    EXPECT_NE(status.message().find(args[1].substr(0, args[1].find('='))), absl::string_view::npos) << status;
  }
}

TEST(SpeculationFlagsTest, ADraftModelIsForDraftsAlone) {
  EXPECT_FALSE(ParseFlags({"m", "--num-speculative-tokens=4"})->has_draft_model());
  const auto flags =
      ParseFlags({"m", "--num-speculative-tokens=4", "--speculative=draft", "--draft-model=/models/small"});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_TRUE(flags->has_draft_model());
  EXPECT_EQ(flags->draft_model, "/models/small");
}

}  // namespace
}  // namespace somnus
