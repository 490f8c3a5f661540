#include "tools/cli/top_screen.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/cli/raw_terminal.h"

namespace somnus::cli {
namespace {

TopFacts Facts(int num_models, int num_requests) {
  TopFacts facts;
  facts.url = "http://127.0.0.1:8000";
  for (int i = 0; i < num_models; ++i) {
    v1::ModelStatus* model = facts.models.add_models();
    model->set_model(absl::StrCat("a-model-with-a-rather-long-name-", i));
    model->set_state(v1::ENGINE_STATE_AWAKE);
    model->set_resident_bytes(int64_t{123} << 30);
    model->set_generation_tokens(1000);
  }
  facts.before = facts.models;
  if (num_models > 0) {
    facts.models.mutable_models(0)->set_generation_tokens(1500);
    facts.models.mutable_models(0)->set_num_steps(125);
  }
  facts.passed = absl::Seconds(2);
  for (int i = 0; i < 8; ++i) {
    v1::RankStatus* rank = facts.status.add_ranks();
    rank->set_rank(i);
    rank->set_device(absl::StrCat("cuda:", i));
    (*rank->mutable_bytes_by_tag())["weights"] = int64_t{70} << 30;
  }
  for (int i = 0; i < num_requests; ++i) {
    RequestRow row;
    row.id = absl::StrCat("cmpl-0123456789abcdef0123456789abcdef-", i);
    row.state = "running";
    row.age_s = i;
    row.output_tokens = i;
    facts.requests.rows.push_back(row);
  }
  for (int i = 0; i < std::min(num_requests, 20); ++i)
    facts.requests.users.push_back({absl::StrCat("user-", i), 100 - i, i, 1000});
  facts.requests.counts["running"] = num_requests;
  return facts;
}

void ExpectFits(const std::vector<std::string>& lines, int rows, int columns) {
  EXPECT_LE(lines.size(), static_cast<size_t>(rows));
  for (const std::string& line : lines) EXPECT_LE(line.size(), static_cast<size_t>(columns)) << line;
}

std::string Text(const std::vector<std::string>& lines) { return absl::StrJoin(lines, "\n"); }

TEST(TopScreenTest, FitsAnyTerminal) {
  const TopFacts facts = Facts(/*num_models=*/40, /*num_requests=*/1000);
  for (const int rows : {1, 5, 24, 60}) {
    for (const int columns : {20, 60, 80, 200}) {
      TopView view;
      ExpectFits(DrawTop(facts, view, rows, columns), rows, columns);
      view.pane = TopPane::kUsers;
      ExpectFits(DrawTop(facts, view, rows, columns), rows, columns);
      view.shows_help = true;
      ExpectFits(DrawTop(facts, view, rows, columns), rows, columns);
    }
  }
}

TEST(TopScreenTest, AWideTerminalShowsSteps) {
  const std::string text = Text(DrawTop(Facts(1, 3), {}, 24, 130));
  for (const char* words : {"step/s", "tok/step", "    62.5      4.0"})
    EXPECT_TRUE(absl::StrContains(text, words)) << words << "\n" << text;
}

TEST(TopScreenTest, SixtyColumnsHaveWhatMatters) {
  const std::string text = Text(DrawTop(Facts(1, 3), {}, 24, 60));
  for (const char* words :
       {"awake", "123.00 GiB", "250.0", "70.00 GiB", "3 run", "running", "cmpl-0123456789abc"})
    EXPECT_TRUE(absl::StrContains(text, words)) << words << "\n" << text;
}

TEST(TopScreenTest, TheSelectedRowIsAlwaysSeen) {
  const TopFacts facts = Facts(1, 1000);
  TopView view;
  for (const size_t selected : {size_t{0}, size_t{10}, size_t{999}}) {
    view.request = selected;
    const std::vector<std::string> lines = DrawTop(facts, view, 24, 100);
    const auto marked = std::find_if(lines.begin(), lines.end(),
                                     [](const std::string& line) { return absl::StartsWith(line, "> "); });
    ASSERT_NE(marked, lines.end()) << selected;
    EXPECT_TRUE(absl::StrContains(*marked, absl::StrCat(" ", selected, " "))) << *marked;
  }
}

TEST(TopScreenTest, TheUsersOfRequestsAreATable) {
  const TopFacts facts = Facts(1, 50);
  TopView view;
  std::string text = Text(DrawTop(facts, view, 40, 80));
  EXPECT_TRUE(absl::StrContains(text, "users (by open):")) << text;
  EXPECT_TRUE(absl::StrContains(text, "user-3 ")) << text;
  EXPECT_FALSE(absl::StrContains(text, "user-4 ")) << "requests need the room\n" << text;
  EXPECT_TRUE(absl::StrContains(Text(DrawTop(facts, view, 16, 80)), "users: user-0 100, user-1 99"));
  view.pane = TopPane::kUsers;
  view.question.users_sort = "tokens";
  for (const size_t selected : {size_t{0}, size_t{19}}) {
    view.user = selected;
    text = Text(DrawTop(facts, view, 24, 60));
    EXPECT_TRUE(absl::StrContains(text, absl::StrCat("> user-", selected, " "))) << text;
    EXPECT_TRUE(absl::StrContains(text, "users (by tokens):")) << text;
  }
  EXPECT_FALSE(absl::StrContains(Text(DrawTop(Facts(1, 0), {}, 40, 80)), "users")) << "nobody is named";
}

TEST(TopScreenTest, MeanWaitsSinceTheLastLook) {
  TopFacts facts = Facts(1, 0);
  v1::TokenLatencies* before = facts.before.mutable_models(0)->mutable_latency();
  before->set_num_first_tokens(3);
  before->set_first_token_s(30);
  v1::TokenLatencies* now = facts.models.mutable_models(0)->mutable_latency();
  now->set_num_first_tokens(5);
  now->set_first_token_s(33);
  now->set_num_further_tokens(100);
  now->set_further_token_s(2.5);
  const std::string text = Text(DrawTop(facts, {}, 24, 80));
  EXPECT_TRUE(absl::StrContains(text, "  TTFT   TPOT")) << text;
  EXPECT_TRUE(absl::StrContains(text, "  1.5s   25ms")) << text;
}

TEST(TopScreenTest, ALongStoryIsScrolled) {
  TopView view;
  view.story.emplace();
  for (int i = 0; i < 50; ++i) view.story->events.push_back({absl::StrCat("event", i, "."), "", 0, 1});
  const std::string first = Text(DrawTop({}, view, 10, 80));
  EXPECT_TRUE(absl::StrContains(first, "event7.")) << first;
  EXPECT_FALSE(absl::StrContains(first, "event8.")) << first;
  EXPECT_TRUE(absl::StrContains(first, "lines 1 to 9 of 52")) << first;
  view.scroll = MostScroll(view, 10, 80);
  const std::string last = Text(DrawTop({}, view, 10, 80));
  EXPECT_TRUE(absl::StrContains(last, "event49.")) << last;
  EXPECT_TRUE(absl::StrContains(last, "lines 44 to 52 of 52")) << last;
  view.scroll = 1000;
  EXPECT_EQ(Text(DrawTop({}, view, 10, 80)), last) << "there is no more";
  view.story->events.resize(3);
  EXPECT_EQ(MostScroll(view, 10, 80), 0u);
  EXPECT_FALSE(absl::StrContains(Text(DrawTop({}, view, 10, 80)), "lines"));
}

TEST(TopScreenTest, TextsOfClientsCannotMoveTheCursor) {
  TopFacts facts = Facts(1, 1);
  facts.requests.rows[0].id = "a\033[2Jb\r\n";
  facts.requests.rows[0].user = "\x9b";
  facts.requests.users.push_back({"u\033]0;x\a", 1, 1, 1});
  facts.error = "e\033[1m";
  TopView view{.question = {.match = "\033c"}, .note = "\033d"};
  const std::string text = Text(DrawTop(facts, view, 24, 120));
  EXPECT_FALSE(absl::StrContains(text, "\033")) << text;
  EXPECT_FALSE(absl::StrContains(text, "\r"));
  EXPECT_TRUE(absl::StrContains(text, "a\\x1b[2Jb\\x0d\\x0a"));
}

TEST(KeyReaderTest, SequencesMayBeSplit) {
  KeyReader reader;
  EXPECT_TRUE(reader.Read("\033", false).empty());
  EXPECT_TRUE(reader.Read("[", false).empty());
  std::vector<KeyPress> keys = reader.Read("Aq\033[6~", false);
  ASSERT_EQ(keys.size(), 3);
  EXPECT_EQ(keys[0].key, Key::kUp);
  EXPECT_EQ(keys[1].character, 'q');
  EXPECT_EQ(keys[2].key, Key::kPageDown);
  keys = reader.Read("\033", true);
  ASSERT_EQ(keys.size(), 1);
  EXPECT_EQ(keys[0].key, Key::kEscape) << "nothing follows";
  EXPECT_TRUE(reader.Read("\033[99;5u\x01\xc3\xa9", true).empty()) << "no keys of ours";
}

}  // namespace
}  // namespace somnus::cli
