#include "base/flags.h"

#include <gtest/gtest.h>

#include <limits>

#include "absl/strings/str_split.h"
#include "base/flag_values.h"
#include "base/version.h"

namespace somnus {
namespace {

enum class Colour { kAuto, kRed };

struct Options {
  int32_t port = 8000;
  int64_t limit = 7;
  uint64_t seed = 1;
  double share = 0.5;
  std::string name = "x";
  std::string key;
  bool verbose = false;
  bool cache = true;
  absl::Duration grace = absl::Seconds(75);
  int64_t memory = 32 << 20;
  std::vector<int32_t> sizes = {1, 2};
  Colour colour = Colour::kAuto;
  std::string pair = "a:1";
  std::optional<int32_t> rank;
  std::optional<std::string> file;
  std::optional<bool> wait;
  std::optional<double> rate;
  std::optional<absl::Duration> pause;
  std::optional<int64_t> size;
};

FlagTable Table(Options* o) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const auto set_pair = [o](const std::string& text) {
    if (text.find(':') == text.npos) return absl::InvalidArgumentError("has no colon");
    o->pair = text;
    return absl::OkStatus();
  };
  FlagTable table;
  table.program = "program";
  table.usage = "program [FILE] [flags]";
  table.about = "Does nothing.";
  table.max_positional = 1;
  table.groups = {
      {"First",
       {Flag::Int("port", &o->port, 0, 65535, "listen port"),
        Flag::Int("max-limit", &o->limit, 1, kMax, "a limit").Alias("old-limit").Alias("limit"),
        Flag::Int("seed", &o->seed, 0, kMax, "a seed"), Flag::Number("share", &o->share, 0.1, 1, "a share"),
        Flag::Text("name", &o->name, "a name").Shows("NAME"), Flag::Text("key", &o->key, "a key"),
        Flag::Switch("verbose", &o->verbose, "says more"), Flag::Switch("cache", &o->cache, "keeps")}},
      {"Second",
       {Flag::Time("grace", &o->grace, absl::Milliseconds(1), absl::Hours(1), "time to end"),
        Flag::Bytes("memory", &o->memory, 1024, int64_t{1} << 31, "memory").Default("what there is"),
        Flag::Ints("sizes", &o->sizes, 1, 64, "sizes"),
        Flag::OneOf("colour", &o->colour, {{"auto", Colour::kAuto}, {"red", Colour::kRed}}, "a colour"),
        Flag::Custom("pair", "A:B", "a:1", set_pair, "a pair"), Flag::Int("rank", &o->rank, 0, 9, "a rank"),
        Flag::Text("file", &o->file, "a file"), Flag::Switch("wait", &o->wait, "waits"),
        Flag::Number("rate", &o->rate, 0, 5, "a rate"),
        Flag::Time("pause", &o->pause, absl::ZeroDuration(), absl::Hours(1), "a pause"),
        Flag::Bytes("size", &o->size, 0, 100, "a size")}},
  };
  return table;
}

absl::StatusOr<ParsedArgs> Parse(Options* options, const std::vector<std::string>& args) {
  return ParseArgs(Table(options), args);
}

TEST(FlagsTest, EveryTypeInEveryWayOfWritingIt) {
  for (const std::vector<std::string>& args : std::vector<std::vector<std::string>>{
           {"--port=9", "--max-limit=8", "--seed=3", "--share=0.75", "--name=n", "--verbose", "--no-cache",
            "--grace=500ms", "--memory=2G", "--sizes=4,8", "--colour=red", "--pair=b:2", "--rank=2",
            "--file=f", "--wait=false", "--rate=1.5", "--pause=2m", "--size=7"},
           absl::StrSplit("--port|9|--old_limit|8|--seed|3|--share|0.75|--name|n|--verbose=true|"
                          "--cache=false|--grace|0.5|--memory|2 GiB|--sizes|4,8|--colour|red|--pair|b:2|"
                          "--rank|2|--file|f|--no-wait|--rate|1.5|--pause|120|--size|7",
                          '|')}) {
    Options o;
    const auto parsed = Parse(&o, args);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(o.port, 9);
    EXPECT_EQ(o.limit, 8);
    EXPECT_EQ(o.seed, 3u);
    EXPECT_EQ(o.share, 0.75);
    EXPECT_EQ(o.name, "n");
    EXPECT_TRUE(o.verbose);
    EXPECT_FALSE(o.cache);
    EXPECT_EQ(o.grace, absl::Milliseconds(500));
    EXPECT_EQ(o.memory, int64_t{2} << 30);
    EXPECT_EQ(o.sizes, (std::vector<int32_t>{4, 8}));
    EXPECT_EQ(o.colour, Colour::kRed);
    EXPECT_EQ(o.pair, "b:2");
    EXPECT_EQ(o.rank, 2);
    EXPECT_EQ(o.file, "f");
    EXPECT_EQ(o.wait, false);
    EXPECT_EQ(o.rate, 1.5);
    EXPECT_EQ(o.pause, absl::Minutes(2));
    EXPECT_EQ(o.size, 7);
  }
}

TEST(FlagsTest, WhatIsNotGivenStays) {
  Options o;
  ASSERT_TRUE(Parse(&o, {}).ok());
  EXPECT_EQ(o.port, 8000);
  EXPECT_EQ(o.memory, 32 << 20);
  EXPECT_FALSE(o.rank.has_value());
  EXPECT_FALSE(o.file.has_value());
  EXPECT_FALSE(o.wait.has_value());
}

TEST(FlagsTest, PositionalArgumentsAndTheEndOfFlags) {
  Options o;
  EXPECT_EQ(Parse(&o, {"--port=1", "file"})->positional, std::vector<std::string>{"file"});
  EXPECT_EQ(Parse(&o, {"--", "--port=2"})->positional, std::vector<std::string>{"--port=2"});
  EXPECT_EQ(o.port, 1);
  for (const char* text : {"-", "-1", "- a dash first", ""}) {
    EXPECT_EQ(Parse(&o, {text})->positional, std::vector<std::string>{text});
  }
  EXPECT_EQ(Parse(&o, {"a", "b"}).status().message(), "unexpected argument 'b'");
}

TEST(FlagsTest, EveryMistakeNamesItsFlag) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--prot=1"}, "unknown flag --prot: did you mean --port?"},
      {{"--max_limi", "1"}, "unknown flag --max_limi: did you mean --max-limit?"},
      {{"--old-limt=1"}, "unknown flag --old-limt: did you mean --max-limit?"},
      {{"--verb"}, "unknown flag --verb: did you mean --verbose?"},
      {{"-port=1"}, "unknown flag -port: did you mean --port?"},
      {{"--versoin"}, "unknown flag --versoin: did you mean --version?"},
      {{"--something-else"}, "unknown flag --something-else; see --help"},
      {{"--no-port"}, "unknown flag --no-port"},
      {{"--port"}, "--port: has no value; N is wanted"},
      {{"--port", "--verbose"}, "--port: has no value; N is wanted"},
      {{"--port=65536"}, "--port: '65536' is not a whole number from 0 to 65535"},
      {{"--port=-1"}, "--port: '-1' is not a whole number from 0 to 65535"},
      {{"--port="}, "--port: '' is not a whole number from 0 to 65535"},
      {{"--old_limit=0"}, "--max-limit: '0' is not a whole number from 1 to 9223372036854775807"},
      {{"--share=nan"}, "--share: 'nan' is not a number from 0.1 to 1"},
      {{"--share=0"}, "--share: '0' is not a number from 0.1 to 1"},
      {{"--name="}, "--name: '' is empty"},
      {{"--verbose=maybe"}, "--verbose: 'maybe' is not true or false"},
      {{"--grace=soon"}, "--grace: 'soon' is not a time like 10s, 500ms or 2m"},
      {{"--grace=2h"}, "--grace: '2h' is not a time from 1ms to 1h"},
      {{"--grace=0"}, "--grace: '0' is not a time from 1ms to 1h"},
      {{"--memory=lots"}, "--memory: 'lots' is not a number of bytes like 4096, 512MiB or 2G"},
      {{"--memory=3G"}, "--memory: '3G' is not a number of bytes from 1KiB to 2GiB"},
      {{"--sizes=1,,2"}, "--sizes: '1,,2' is not a list of at most 1024 whole numbers from 1 to 64"},
      {{"--colour=blue"}, "--colour: 'blue' is not one of auto, red"},
      {{"--pair=x"}, "--pair: 'x' has no colon"},
  };
  for (const auto& [args, expected] : cases) {
    Options o;
    const absl::Status status = Parse(&o, args).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << expected;
    EXPECT_EQ(status.message().substr(0, std::string(expected).size()), expected);
  }
}

TEST(FlagsTest, HelpAndVersionStopTheParsing) {
  Options o;
  for (const char* flag : {"--help", "-h"}) {
    const auto parsed = Parse(&o, {flag, "--bogus"});
    ASSERT_TRUE(parsed.ok());
    EXPECT_TRUE(parsed->help);
    EXPECT_FALSE(parsed->version);
  }
  EXPECT_TRUE(Parse(&o, {"--port=3", "--version"})->version);
  EXPECT_TRUE(Parse(&o, {"--help=all", "--bogus"})->help_all);
  EXPECT_EQ(VersionText(Table(&o)), std::string("somnus program ") + kVersion);
}

TEST(FlagsTest, HelpShowsCommonFlagsAloneWhereATableNamesThem) {
  Options o;
  FlagTable table = Table(&o);
  EXPECT_EQ(HelpText(table), FullHelpText(table)) << "a table without common flags";
  table.common = {"port", "name"};
  const std::string help = HelpText(table);
  EXPECT_NE(help.find("  --port=N"), std::string::npos);
  EXPECT_NE(help.find("  --name=NAME"), std::string::npos);
  EXPECT_EQ(help.find("--verbose"), std::string::npos);
  EXPECT_EQ(help.find("Second:"), std::string::npos) << "a title without flags";
  EXPECT_NE(help.find("  --help=all                        every flag: "), std::string::npos) << help;
  EXPECT_EQ(FullHelpText(table).find("--help=all"), std::string::npos);
}

TEST(FlagsTest, HelpShowsDefaultsBoundsAndUnitsAndHidesAliases) {
  Options o;
  const std::string help = HelpText(Table(&o));
  for (const char* line : {
           "usage: program [FILE] [flags]\n\nDoes nothing.\n\nFirst:\n",
           "  --port=N                          listen port (default: 8000; 0 to 65535)\n",
           "  --max-limit=N                     a limit (default: 7; at least 1)\n",
           "  --name=NAME                       a name (default: x)\n",
           "  --key=TEXT                        a key\n",
           "  --verbose                         says more (default: false)\n",
           "\nSecond:\n  --grace=TIME                      time to end (default: 1m15s; 1ms to 1h)\n",
           "  --memory=BYTES                    memory (default: what there is; 1KiB to 2GiB)\n",
           "  --sizes=N,N,...                   sizes (default: 1,2; 1 to 64)\n",
           "  --colour=auto|red                 a colour (default: auto)\n",
           "  --rank=N                          a rank (0 to 9)\n",
           "\n  --help, --version\n\nTIME is like 10s, 500ms or 2m; a plain number is seconds.\n"
           "BYTES is like 512MiB or 2G; a plain number is bytes.\n",
       }) {
    EXPECT_NE(help.find(line), std::string::npos) << line << "\nin\n" << help;
  }
  EXPECT_EQ(help.find("old-limit"), std::string::npos);
}

TEST(FlagsTest, HelpWrapsAtWords) {
  Options o;
  FlagTable table = Table(&o);
  std::string words;
  for (int i = 0; i < 40; ++i) words += "word ";
  table.groups = {
      {"All", {Flag::Custom("a-name-that-is-longer-than-its-column", "VALUE", "", nullptr, words)}}};
  const std::string help = HelpText(table);
  size_t at = help.find("All:");
  while (at < help.size()) {
    const size_t end = help.find('\n', at);
    EXPECT_LE(end - at, 112u) << help;
    at = end + 1;
  }
  EXPECT_NE(help.find("VALUE\n                                    word word"), std::string::npos) << help;
}

TEST(FlagsTest, AMainPrintsAndSaysHowToEnd) {
  Options o;
  std::vector<std::string> positional;
  const char* good[] = {"program", "--port=5", "file"};
  EXPECT_EQ(ParseCommandLine(Table(&o), 3, good, &positional), std::nullopt);
  EXPECT_EQ(o.port, 5);
  EXPECT_EQ(positional, std::vector<std::string>{"file"});
  const char* bad[] = {"program", "--port=x"};
  testing::internal::CaptureStderr();
  EXPECT_EQ(ParseCommandLine(Table(&o), 2, bad), 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "program: --port: 'x' is not a whole number from 0 to 65535\n");
  const char* help[] = {"program", "--help"};
  testing::internal::CaptureStdout();
  EXPECT_EQ(ParseCommandLine(Table(&o), 2, help), 0);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), HelpText(Table(&o)));
}

TEST(FlagValuesTest, Times) {
  const std::pair<const char*, absl::Duration> cases[] = {
      {"10s", absl::Seconds(10)},   {"500ms", absl::Milliseconds(500)}, {"2m", absl::Minutes(2)},
      {"1h30m", absl::Minutes(90)}, {"1.5", absl::Milliseconds(1500)},  {"0", absl::ZeroDuration()},
      {"300", absl::Minutes(5)}};
  for (const auto& [text, time] : cases) {
    EXPECT_EQ(ParseTime(text).value_or(absl::InfiniteDuration()), time) << text;
  }
  for (const char* text : {"", "s", "10 s", "-1", "-1s", "inf", "nan", "1e400", "1d", "ten"}) {
    EXPECT_FALSE(ParseTime(text).ok()) << text;
  }
  EXPECT_EQ(FormatTime(absl::Seconds(300)), "5m");
  EXPECT_EQ(FormatTime(absl::Milliseconds(250)), "250ms");
}

TEST(FlagValuesTest, Bytes) {
  const std::pair<const char*, int64_t> cases[] = {{"1000", 1000},
                                                   {"0", 0},
                                                   {"7b", 7},
                                                   {"1KiB", 1024},
                                                   {"1.5 MiB", 1572864},
                                                   {"2GB", 2000000000},
                                                   {"2G", int64_t{2} << 30},
                                                   {"3g", int64_t{3} << 30},
                                                   {"1TiB", int64_t{1} << 40},
                                                   {"5kb", 5000}};
  for (const auto& [text, bytes] : cases) EXPECT_EQ(ParseBytes(text).value_or(-1), bytes) << text;
  for (const char* text : {"", "G", "-1", "1 X", "1Gi", "1e3", "lots", "99999999T", "1.2.3"}) {
    EXPECT_FALSE(ParseBytes(text).ok()) << text;
  }
  const std::pair<int64_t, const char*> shown[] = {{0, "0"},
                                                   {1000, "1000"},
                                                   {1024, "1KiB"},
                                                   {3 << 20, "3MiB"},
                                                   {int64_t{1} << 40, "1TiB"},
                                                   {int64_t{1} << 50, "1024TiB"}};
  for (const auto& [bytes, text] : shown) {
    EXPECT_EQ(FormatBytes(bytes), text);
    EXPECT_EQ(ParseBytes(text).value_or(-1), bytes);
  }
}

TEST(NearestNameTest, IsWhatWasLikelyMeant) {
  EXPECT_EQ(NearestName("chta", {"chat", "serve"}), "chat");
  EXPECT_EQ(NearestName("max-model", {"max-num-seqs", "max-model-len"}), "max-model-len");
  EXPECT_EQ(NearestName("zebra", {"chat", "serve"}), "");
}

}  // namespace
}  // namespace somnus
