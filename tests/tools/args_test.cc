#include "tools/cli/args.h"

#include <gtest/gtest.h>

namespace somnus::cli {
namespace {

const Command& TestCommand() {
  static const Command* command = new Command{
      "x",
      "somnus x",
      "",
      "",
      {{"max-tokens", "N", ""}, {"temperature", "T", ""}, {"json", "", ""}, {"eos", "[=true|false]", ""}}};
  return *command;
}

TEST(ArgsTest, BothSpellingsAndBothForms) {
  const auto args =
      Args::Parse(TestCommand(), {"--max_tokens=5", "hello", "--temperature", "-0.5", "--json", "--", "--x"});
  ASSERT_TRUE(args.ok()) << args.status();
  EXPECT_EQ(args->GetInt("max-tokens", 1, 0, 10).value(), 5);
  EXPECT_EQ(args->GetDouble("temperature", 1, -1, 1).value(), -0.5);
  EXPECT_TRUE(args->Has("json"));
  EXPECT_EQ(args->positional(), (std::vector<std::string>{"hello", "--x"}));
}

TEST(ArgsTest, SwitchesMayHaveAValue) {
  const auto eos = [](const std::vector<std::string>& args) {
    return Args::Parse(TestCommand(), args).value().GetBool("eos", true);
  };
  EXPECT_TRUE(eos({}).value());
  EXPECT_TRUE(eos({"--eos", "positional"}).value());
  EXPECT_FALSE(eos({"--eos=false"}).value());
  EXPECT_FALSE(eos({"--eos=maybe"}).ok());
}

TEST(ArgsTest, ErrorsNameTheFlag) {
  const auto message = [](const std::vector<std::string>& args) {
    return std::string(Args::Parse(TestCommand(), args).status().message());
  };
  EXPECT_EQ(message({"--max-token", "5"}), "unknown flag --max-token (did you mean --max-tokens?)");
  EXPECT_EQ(message({"--completely-different"}), "unknown flag --completely-different");
  EXPECT_EQ(message({"--max-tokens"}), "--max-tokens needs a value: N");
  EXPECT_EQ(message({"--json=1"}), "--json takes no value");
}

TEST(ArgsTest, NumbersOutsideTheirRangeAreRefused) {
  for (const char* text : {"", "x", "1.5", "11", "-1", "99999999999999999999"}) {
    const auto args = Args::Parse(TestCommand(), {"--max-tokens", text});
    ASSERT_TRUE(args.ok());
    EXPECT_EQ(args->GetInt("max-tokens", 1, 0, 10).status().code(), absl::StatusCode::kInvalidArgument)
        << text;
  }
  for (const char* text : {"nan", "inf", "x", "2"}) {
    const auto args = Args::Parse(TestCommand(), {"--temperature", text});
    ASSERT_TRUE(args.ok());
    EXPECT_FALSE(args->GetDouble("temperature", 1, 0, 1).ok()) << text;
  }
}

TEST(ArgsTest, HelpNamesEveryFlag) {
  const std::string help = HelpText(TestCommand());
  for (const Flag& flag : TestCommand().flags) EXPECT_NE(help.find("--" + flag.name), std::string::npos);
}

}  // namespace
}  // namespace somnus::cli
