#include "tools/cli/request_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace somnus::cli {
namespace {

constexpr char kStory[] = R"({"request_id": "cmpl-1", "model": "m", "user": "ann", "state": "ended",
    "finish_reason": "stop", "received": 1000, "age_s": 3.5, "queue_s": 0.25, "ttft_s": 0.5, "num_choices": 1,
    "num_prompt_tokens": 5, "num_output_tokens": 31, "max_tokens": 64, "num_steps": 32, "num_preemptions": 1,
    "events": [{"event": "queued", "at": 1000, "count": 1, "detail": ""},
               {"event": "scheduled", "at": 1000.25, "count": 1, "detail": ""},
               {"event": "preempted", "at": 1001, "count": 2, "detail": "no_blocks, swap"},
               {"event": "ended", "at": 1003.5, "count": 1, "detail": "stop"}],
    "num_dropped_events": 7})";

TEST(RequestReportTest, AStoryIsReadAndTold) {
  const RequestStory story = ReadRequestStory(nlohmann::json::parse(kStory));
  EXPECT_EQ(
      StoryText(story, absl::UTCTimeZone(), 200),
      "cmpl-1, m, user ann: ended (stop) after 3.500 s\n"
      "  00:16:40.000  +  0.000 s  queued\n"
      "  00:16:40.250  +  0.250 s  scheduled\n"
      "  00:16:41.000  +  1.000 s  preempted (2 times): no_blocks, swap\n"
      "  00:16:43.500  +  3.500 s  ended: stop\n"
      "  and 7 further events\n"
      "5 tokens of prompt, 31 of at most 64 of output, 0.250 s in the queue, first token after 0.500 s, then "
      "10.0 tokens a second, computed in 32 steps, preempted 1 time\n");
  for (const absl::string_view line : absl::StrSplit(StoryText(story, absl::UTCTimeZone(), 60), '\n'))
    EXPECT_LE(line.size(), 60) << line;
}

TEST(RequestReportTest, AnythingMayBeMissing) {
  for (const char* text :
       {"{}", R"({"events": 5, "counts": [], "data": {}})", R"({"events": [1, {}], "data": [2]})"}) {
    const nlohmann::json json = nlohmann::json::parse(text);
    EXPECT_FALSE(StoryText(ReadRequestStory(json), absl::UTCTimeZone(), 80).empty());
    ReadRequestList(json);
  }
}

TEST(RequestReportTest, AStoryCannotMoveTheCursor) {
  RequestStory story = ReadRequestStory(nlohmann::json::parse(kStory));
  story.row.user = story.events[0].event = story.events[2].detail = "\033[2J";
  EXPECT_EQ(StoryText(story, absl::UTCTimeZone(), 80).find('\033'), std::string::npos);
}

TEST(RequestReportTest, ALogLineIsOneLine) {
  RequestRow row = ReadRequestStory(nlohmann::json::parse(kStory)).row;
  row.id = "a\nb\033\u00fc";
  EXPECT_EQ(LogLine(row, absl::UTCTimeZone()),
            "00:16:43.500  a\\x0ab\\x1b\u00fc  m  stop  5+31 tokens  3.500 s  queue 0.250 s  first 0.500 s  "
            "preempted 1  "
            "user ann");
}

}  // namespace
}  // namespace somnus::cli
